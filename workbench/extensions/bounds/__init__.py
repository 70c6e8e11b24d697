"""What files, models, templates and checkpoints of strangers may take: model folders are looked at and tried, pages of parquet are
counted as they unpack, templates run under limits."""
