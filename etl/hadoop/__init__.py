"""What a Hadoop site provides apart from its filesystem: configuration files and YARN's REST API.

HDFS itself is in `etl.storage`; jobs that run on YARN are in `mapreduce.jobs`."""
