"""Seeded permutations of 0 .. n-1: `permute` computes any part of one alone, `permutation` all of one.

`permute` is a Feistel network over the smallest even number of bits that holds n, with cycle walking (Black and
Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). Its round function, and the hash that `permutation`
sorts by, is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014). The numbers are the same on every machine and with every version of numpy, which numpy's own generators
do not promise.
"""

import hashlib

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

_ROUNDS = 8


def permute(values: Integers, n: int, *seed: object) -> Integers:
    """Where the permutation of 0 .. n-1 that belongs to ``seed`` takes each of ``values`` (int64, any shape)."""
    if values.size and (int(values.min()) < 0 or int(values.max()) >= n):
        raise ValueError(f"values must be from 0 to {n - 1}, got {values.min()} to {values.max()}")
    half_bits = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = _round_keys(seed)
    result = _encrypt(values.astype(np.uint64), half_bits, keys)
    while (outside := result >= n).any():
        result[outside] = _encrypt(result[outside], half_bits, keys)
    return result.astype(np.int64)


def permutation(n: int, *seed: object) -> Integers:
    """All of 0 .. n-1 in a seeded order, another one than `permute`'s: int64 of shape (n,).

    Sorted by a hash of each, which is several times faster where all are wanted; equal hashes keep their order.
    """
    first, second, *_ = _round_keys(seed)
    hashes = _mix(_mix(np.arange(n, dtype=np.uint64) + first) + second)
    return np.argsort(hashes, kind="stable").astype(np.int64, copy=False)


def _round_keys(seed: tuple[object, ...]) -> npt.NDArray[np.uint64]:
    plain = tuple(int(each) if isinstance(each, np.integer) else each for each in seed)
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8 * _ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def _encrypt(values: npt.NDArray[np.uint64], half_bits: int, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    shift, low = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & low
    for key in keys:
        left, right = right, left ^ (_mix(right + key) & low)
    return (left << shift) | right


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
