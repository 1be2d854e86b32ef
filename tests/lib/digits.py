"""Real images for the demo and the tests: the 1,797 handwritten digits that scikit-learn ships, as PNG files.

    python -m tests.lib.digits FOLDER

They are the test set of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
Repository: 8x8 pixels with values from 0 to 16.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

NUMBER = 1797


def write_digits(folder: Path) -> None:
    """Write ``folder/CLASS/NUMBER.png`` for every digit; what is there already stays."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.round(pixels * 255 / 16).astype(np.uint8)).save(path)


if __name__ == "__main__":
    write_digits(Path(sys.argv[1]))
