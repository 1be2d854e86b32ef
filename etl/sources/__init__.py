"""Where raw images come from: folders, IDX files, archives, Parquet files, or a list of any files.

A module belongs here if it finds images in a source, or reads their bytes, keys, labels and splits. Packing them is in
`etl.raw`, decoding in `etl.images`."""

from etl.sources.base import Source as Source
from etl.sources.base import SourceImage as SourceImage
from etl.sources.base import SourceOptions as SourceOptions
from etl.sources.base import fingerprint as fingerprint
from etl.sources.detect import open_source as open_source
from etl.sources.fields import read_classes as read_classes
from etl.sources.folder import FolderSource as FolderSource
