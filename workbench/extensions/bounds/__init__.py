"""What files and templates of strangers may take: pages of parquet are counted as they unpack, templates run under limits."""
