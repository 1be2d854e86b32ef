"""Thirty defects, each as a careless change would make it, in the places that everything else trusts.

None is equivalent to the code as it is, and none fails at import: what must see it is a test of the promise it breaks.
`tests.lib.defects` applies them one at a time.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """A change of one file: ``old`` occurs in it once and becomes ``new``. ``tests`` are the paths to run first."""

    name: str
    place: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


SHARES, ORDER, CRC = "share arithmetic", "order of an epoch", "CRC check"
PUBLISH, CLAIM, REDUCE = "publish", "claim", "all-reduce"
CHECKPOINT, VERIFY, STICKY = "checkpoint marker", "verify", "sticky splits"
PLACES = (SHARES, ORDER, CRC, PUBLISH, CLAIM, REDUCE, CHECKPOINT, VERIFY, STICKY)

_PARTITION = ("tests/etl/partition",)
_READER = (
    "tests/train/reader/test_batches.py",
    "tests/train/reader/test_order.py",
    "tests/train/reader/test_reader.py",
)
_RECORDS = ("tests/etl/formats/test_records.py", "tests/train/reader/test_windows.py")
_ATOMIC = ("tests/etl/storage/test_atomic.py",)
_LEASE = ("tests/etl/stages/test_claim.py", "tests/etl/stages/test_stage.py", "tests/etl/stages/test_lease.py")
_PARALLEL = ("tests/train/parallel/test_strategy.py", "tests/train/trainer/test_steps.py")
_VERIFY = ("tests/etl/verify",)
_SLICES = tuple(f"tests/etl/slices/test_{name}.py" for name in ("memory", "lineage", "split_assignment"))

DEFECTS = (
    Defect(
        "share-of-the-smallest",
        SHARES,
        "what is left of a total goes to the smallest remainders",
        "etl/partition/shares.py",
        "order = sorted(range(len(quotas)), key=lambda i: (counts[i] - quotas[i], i))",
        "order = sorted(range(len(quotas)), key=lambda i: (quotas[i] - counts[i], i))",
        _PARTITION,
    ),
    Defect(
        "share-starts-late",
        SHARES,
        "a stratum is dealt from where it ends itself, not from where the one before ended",
        "etl/partition/shares.py",
        "dealt_before = self.counts[:stratum].sum(axis=0)",
        "dealt_before = self.counts[: stratum + 1].sum(axis=0)",
        _PARTITION,
    ),
    Defect(
        "share-counts-own-part",
        SHARES,
        "a part begins at the rank where it ends",
        "etl/partition/strata.py",
        """\
            yield dict(zip(present.tolist(), before[present].tolist(), strict=True))
            before += own
""",
        """\
            before += own
            yield dict(zip(present.tolist(), before[present].tolist(), strict=True))
""",
        _PARTITION,
    ),
    Defect(
        "permutation-walks-once",
        SHARES,
        "a value that leaves the range is encrypted once more, whether or not it is back then",
        "etl/partition/permutation.py",
        "    while (outside := result >= n).any():",
        "    if (outside := result >= n).any():",
        _PARTITION,
    ),
    Defect(
        "order-same-in-each-epoch",
        ORDER,
        "the records of a window are shuffled alike in every epoch",
        "train/reader/order.py",
        'permutation(size, "records", *self._seed, number, window)',
        'permutation(size, "records", self.seed, number, window)',
        _READER,
    ),
    Defect(
        "order-remainder-dropped",
        ORDER,
        "examples that do not divide by the ranks belong to none",
        "train/reader/intervals.py",
        "    return total * rank // world_size, total * (rank + 1) // world_size",
        "    return total // world_size * rank, total // world_size * (rank + 1)",
        _READER,
    ),
    Defect(
        "order-forgets-what-was-taken",
        ORDER,
        "the state counts the last step alone",
        "train/reader/state.py",
        "return replace(self, taken=self.taken + steps)",
        "return replace(self, taken=steps)",
        _READER,
    ),
    Defect(
        "order-repeats-count",
        ORDER,
        "an example that only fills a batch up has weight 1",
        "train/reader/batches.py",
        """\
                column[fill] = column[real[0]]
            return batch
""",
        """\
                column[fill] = column[real[0]]
            batch.weights[fill] = 1
            return batch
""",
        _READER,
    ),
    Defect(
        "crc-of-the-length-unchecked",
        CRC,
        "the CRC of a record's length is not compared",
        "etl/formats/records.py",
        "    if mask(crc32c(header[:8])) != length_crc:",
        "    if not length_crc:",
        _RECORDS,
    ),
    Defect(
        "crc-masked-otherwise",
        CRC,
        "a CRC is turned by 16 bits, not by 15: consistent, and not TensorFlow's",
        "etl/formats/records.py",
        "    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF",
        "    return (((crc >> 16) | (crc << 16)) + _MASK_DELTA) & 0xFFFFFFFF",
        _RECORDS,
    ),
    Defect(
        "crc-of-whole-blocks-unchecked",
        CRC,
        "a block that has its length passes, whatever its CRC",
        "train/reader/windows.py",
        "len(content) == blocks.size[block] and not (check",
        "len(content) == blocks.size[block] or not (check",
        _RECORDS,
    ),
    Defect(
        "publish-replaces",
        PUBLISH,
        "of two attempts at a file the last one wins",
        "etl/storage/local.py",
        "            os.link(path, target)",
        "            os.replace(path, target)",
        _ATOMIC,
    ),
    Defect(
        "publish-takes-any-bytes",
        PUBLISH,
        "who comes second does not compare its bytes with those that are there",
        "etl/storage/atomic.py",
        "if not output.won and final.sha256() != output.sha256:",
        "if not output.won and not final.exists():",
        _ATOMIC,
    ),
    Defect(
        "publish-makes-its-folder-again",
        PUBLISH,
        "an owner that was replaced makes the folder of its attempts again, and writes on",
        "etl/storage/atomic.py",
        "        stream = attempt.filesystem.open_new(attempt.path)",
        "        stream = attempts.make_folder().filesystem.open_new(attempt.path)",
        _ATOMIC,
    ),
    Defect(
        "claim-below-another",
        CLAIM,
        "a claim that is published late, below a higher one, is believed",
        "etl/stages/lease.py",
        "            if _highest(work) != claim.number:",
        "            if _highest(work) is None:",
        _LEASE,
    ),
    Defect(
        "claim-of-another-host-is-dead",
        CLAIM,
        "an owner on another host is looked for among the processes of this one",
        "etl/stages/lease.py",
        "        return self.host == _host() and _start_time(self.pid) != self.started",
        "        return _start_time(self.pid) != self.started",
        _LEASE,
    ),
    Defect(
        "claim-renewed-after-loss",
        CLAIM,
        "an owner that was replaced goes on touching the claim of its number, which is another's by now",
        "etl/stages/lease.py",
        """\
                if not self.attempts.exists():
                    raise FileNotFoundError
                self._place""",
        "                self._place",
        _LEASE,
    ),
    Defect(
        "stage-deletes-its-marker-last",
        CLAIM,
        "a stage that is replaced loses its files before its marker",
        "etl/stages/stage.py",
        """\
        withdraw(self.marker, self.attempts)  # before anything that it tells of
        self.folder.filesystem.sync_folder(self.folder.path)
        names = [info.base_name for info in self.folder.children()]
        self.delete_checked([self.folder / name for name in names if name != WORK_FOLDER])
""",
        """\
        names = [info.base_name for info in self.folder.children()]
        kept = {WORK_FOLDER, self.marker_name}
        self.delete_checked([self.folder / name for name in names if name not in kept])
        withdraw(self.marker, self.attempts)
""",
        _LEASE,
    ),
    Defect(
        "step-ignores-padding",
        REDUCE,
        "gradients are not divided by the examples that the step had, so those of a step with padding are too small",
        "train/trainer/steps.py",
        "gradients = [tf.math.divide_no_nan(each, tf.cast(full, each.dtype)) for each in gradients]",
        "gradients = list(gradients)",
        _PARALLEL,
    ),
    Defect(
        "step-takes-its-own-gradient",
        REDUCE,
        "gradients are reduced, and each rank takes its own",
        "train/trainer/steps.py",
        "        gradients = strategy.average_gradients(",
        "        strategy.average_gradients(",
        _PARALLEL,
    ),
    Defect(
        "statistics-averaged",
        REDUCE,
        "the statistics of a synchronised batch norm are averaged, not summed",
        "train/parallel/strategy.py",
        "        return hvd.allreduce(tensor, op=hvd.Sum)",
        "        return hvd.allreduce(tensor, op=hvd.Average)",
        _PARALLEL,
    ),
    Defect(
        "checkpoint-keeps-an-old-marker",
        CHECKPOINT,
        "files of a step are replaced beneath the marker of the checkpoint that was there",
        "train/checkpoints/store.py",
        """\
    withdraw(folder / MARKER, attempts)
    files = {}
""",
        """\
    files = {}
""",
        ("tests/train/checkpoints/test_store.py",),
    ),
    Defect(
        "checkpoint-of-the-right-size",
        CHECKPOINT,
        "of a checkpoint's file only the size is compared",
        "train/checkpoints/store.py",
        '    if digest.hexdigest() != told["sha256"]:',
        '    if data.tell() != told["size_bytes"]:',
        ("tests/train/checkpoints/test_store.py",),
    ),
    Defect(
        "commit-of-rank-0",
        CHECKPOINT,
        "a new ring goes on from rank 0's commit, though that rank is new and has none",
        "train/trainer/commits.py",
        "        source = furthest.index(max(furthest))",
        "        source = 0",
        ("tests/train/trainer/test_commits.py",),
    ),
    Defect(
        "verify-allows-a-double",
        VERIFY,
        "a key may be dealt twice",
        "etl/verify/exactly_once.py",
        "        if len(dealt) > 1:",
        "        if len(dealt) > 2:",
        _VERIFY,
    ),
    Defect(
        "verify-allows-lost-lines",
        VERIFY,
        "lines that the shuffle lost are not missed",
        "etl/verify/collect.py",
        '            if told["lines"] != sent[number]:',
        '            if told["lines"] > sent[number]:',
        _VERIFY,
    ),
    Defect(
        "verify-forgets-empty-slices",
        VERIFY,
        "a slice without an example of a class is left out when classes are compared",
        "etl/verify/check_markers.py",
        "        if most - (least if everywhere else 0) > 1:",
        "        if most - least > 1:",
        (*_VERIFY, "tests/mapreduce/test_verify_forged.py"),
    ),
    Defect(
        "splits-forget-the-departed",
        STICKY,
        "a key that left and comes back is dealt like a new one",
        "etl/slices/memory.py",
        '    yield parquet_tables.read_table(folder / departed, [column, "split"])\n',
        "",
        (*_SLICES, "tests/mapreduce/test_shard.py"),
    ),
    Defect(
        "splits-of-the-oldest",
        STICKY,
        "'newest' takes the beginning of the lineage",
        "etl/slices/lineage.py",
        "    return [each for each in slices if each.fingerprint not in ancestors]",
        "    return [each for each in slices if not each.ancestors]",
        (*_SLICES, "tests/mapreduce/test_shard.py"),
    ),
    Defect(
        "splits-of-other-keys",
        STICKY,
        "keys are sorted by their digests, their splits are not",
        "etl/slices/memory.py",
        "        self.splits = np.concatenate(splits)[order]",
        "        self.splits = np.concatenate(splits)",
        _SLICES,
    ),
)
