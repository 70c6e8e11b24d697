"""pyarrow; where it is not installed, an extension's stand-in that reads what the run store and the importers read."""

from workbench.basics.extensions import service
from workbench.values.errors import MissingPackageError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except MissingPackageError:
    pa, pc, pq = service("arrow", "reading parquet files")

__all__ = ["pa", "pc", "pq"]
