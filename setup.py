"""Packaging of ringslice: a light core; trainers, Airflow and developers ask for more by extras."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "etl" / "__init__.py").read_text()).group(1)

# horovod itself comes from train/toolchain/build_horovod.py: its sdist does not compile as it is
TRAINING = ["safetensors>=0.4", "setuptools<81", "wheel", "packaging", "cmake>=3.25,<4"]

setup(
    name="ringslice",
    version=VERSION,
    description="Raw images in, a trained model out: mrjob cuts exact TFRecord slices, a Horovod ring trains on them.",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.13",
    py_modules=["ringslice_entry"],
    packages=find_packages(include=["etl*", "mapreduce*", "train*"]),
    package_data={
        "etl": ["py.typed"],
        "etl.report": ["templates/*.html"],
        "etl.normalized": ["schemas/*.json"],
        "etl.raw": ["schemas/*.json"],
        "etl.slices": ["schemas/*.json"],
        "train.config": ["recipes/*.toml"],
        "train.report": ["templates/*.html"],
        "train.toolchain": ["native/*.cc"],
    },
    entry_points={"console_scripts": ["ringslice = ringslice_entry:main"]},
    install_requires=[
        "click>=8.4",  # since then its types are generic
        "crc32c>=2.7",
        "hdfs-native>=0.14.7,<1",
        "mrjob>=0.7.4,<0.8",
        "numpy>=2.0",
        "opencv-python-headless>=4.11,<6",
        "packaging>=23",
        "pillow>=11.3",  # since then its wheels read AVIF
        "protobuf>=5",
        "pyarrow>=18",
        "rich>=13.7",
        "simplejpeg>=1.8,<2",
        # mrjob imports distutils, which Python 3.12 no longer brings
        "setuptools<81; python_version >= '3.12'",
    ],
    extras_require={
        "train": ["tensorflow-cpu==2.21.0", *TRAINING],
        "gpu": ["tensorflow[and-cuda]==2.21.0", *TRAINING],  # instead of "train"
        "torch": ["torch>=2.11,<3", "safetensors>=0.4"],  # --strategy ddp; needs no "train"
        # ringslice report: for the machine of who looks at datasets; mappers do without
        "report": ["jinja2>=3.1", "matplotlib>=3.9"],
        "airflow": ["apache-airflow>=3.3,<4"],
        "dev": [
            "hypothesis>=6",
            "import-linter>=2.3",  # exhaustive layers
            "jsonschema>=4.23",
            "mypy>=1.15",
            # 9.1 loses fixtures if a file of a folder is named between two files below it (pytest-dev/pytest#14635);
            # pytest-xdist 3.8 groups tests by an attribute that 9.2 no longer has
            "pytest>=8,<9.1",
            "pytest-rerunfailures>=15",
            "pytest-xdist>=3",
            "ruff>=0.9",
            "scikit-learn>=1.6",
            "tfrecord>=1.14",
        ],
    },
)
