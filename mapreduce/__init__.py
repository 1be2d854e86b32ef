"""The MapReduce jobs: one MRJob per file, each an mrjob script that also runs alone."""
