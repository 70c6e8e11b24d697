"""What the light install has instead of large packages: parquet files read without pyarrow, Student's t without scipy."""
