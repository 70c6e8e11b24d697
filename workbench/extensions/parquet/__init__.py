"""What the light install reads parquet files with, where pyarrow is not installed."""
