#!/usr/bin/env bash
# Stands in for bin/hadoop, bin/hdfs, bin/yarn and bin/mapred of a Hadoop release: the same words, the same environment
# variables (HADOOP_CONF_DIR, JAVA_HOME, HADOOP_HEAPSIZE, HADOOP_CLASSPATH, HADOOP_OPTS, HADOOP_CLIENT_OPTS).
set -euo pipefail

program=$(basename "$0")
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
conf=${HADOOP_CONF_DIR:-$home/etc/hadoop}
jars="$home/share/hadoop/common/lib"
if [[ $# -eq 0 ]]; then
  echo "usage: $program COMMAND [ARGUMENTS]" >&2
  exit 2
fi
command=$1
shift

if [[ -n ${JAVA_HOME:-} ]]; then
  java=$JAVA_HOME/bin/java
else
  java=$(command -v java) || { echo "$program: java is missing and JAVA_HOME is not set" >&2; exit 1; }
fi

daemon=
case "$program $command" in
  "hadoop classpath" | "hdfs classpath" | "yarn classpath" | "mapred classpath")
    if [[ ${1:-} == --glob ]]; then
      names=("$jars"/*.jar)
      joined=$(IFS=:; echo "${names[*]}")
      echo "$conf:$home/share/hadoop/hdfs:$joined${HADOOP_CLASSPATH:+:$HADOOP_CLASSPATH}"
    else
      echo "$conf:$home/share/hadoop/hdfs:$jars/*${HADOOP_CLASSPATH:+:$HADOOP_CLASSPATH}"
    fi
    exit ;;
  "hadoop fs" | "hadoop dfs" | "hdfs dfs") class=org.apache.hadoop.fs.FsShell ;;
  "hadoop jar" | "yarn jar") class=org.apache.hadoop.util.RunJar ;;
  "hadoop version" | "hdfs version" | "yarn version") class=org.apache.hadoop.util.VersionInfo ;;
  "hadoop distcp") class=org.apache.hadoop.tools.DistCp ;;
  "hdfs getconf") class=org.apache.hadoop.hdfs.tools.GetConf ;;
  "hdfs dfsadmin") class=org.apache.hadoop.hdfs.tools.DFSAdmin ;;
  "hdfs fsck") class=org.apache.hadoop.hdfs.tools.DFSck ;;
  "hdfs namenode") class=org.apache.hadoop.hdfs.server.namenode.NameNode; daemon=yes ;;
  "hdfs datanode") class=org.apache.hadoop.hdfs.server.datanode.DataNode; daemon=yes ;;
  "yarn resourcemanager") class=org.apache.hadoop.yarn.server.resourcemanager.ResourceManager; daemon=yes ;;
  "yarn nodemanager") class=org.apache.hadoop.yarn.server.nodemanager.NodeManager; daemon=yes ;;
  "yarn application" | "yarn app") class=org.apache.hadoop.yarn.client.cli.ApplicationCLI; set -- application "$@" ;;
  "yarn node") class=org.apache.hadoop.yarn.client.cli.NodeCLI ;;
  "yarn logs") class=org.apache.hadoop.yarn.client.cli.LogsCLI ;;
  "yarn rmadmin") class=org.apache.hadoop.yarn.client.cli.RMAdminCLI ;;
  "mapred job") class=org.apache.hadoop.mapred.JobClient ;;
  *) echo "$program: $command is not among the commands of this Hadoop for tests" >&2; exit 2 ;;
esac

logs=${HADOOP_LOG_DIR:-$home/logs}
heap=${HADOOP_HEAPSIZE:-256}
[[ $heap == *[!0-9]* ]] || heap=${heap}m
# one core's worth of compiler and collector: these processes are small, and starting is most of what they do
options=("-Xmx$heap" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true
  --add-opens=java.base/java.lang=ALL-UNNAMED "-Dhadoop.home.dir=$home" "-Dhadoop.log.dir=$logs" "-Dyarn.log.dir=$logs")
archive=$home/classes.jsa
if [[ -s $archive ]]; then
  options+=("-XX:SharedArchiveFile=$archive" -Xshare:auto -Xlog:disable -Xlog:all=error:stderr)
fi
# shellcheck disable=SC2206  # options are words
options+=(${HADOOP_OPTS:-})
# shellcheck disable=SC2206
[[ -n $daemon ]] || options+=(${HADOOP_CLIENT_OPTS:-})

names=("$jars"/*.jar)
classpath=$(IFS=:; echo "${names[*]}")
export HADOOP_HOME=$home HADOOP_CONF_DIR=$conf
exec "$java" "${options[@]}" -cp "$classpath:$conf:$home/share/hadoop/hdfs${HADOOP_CLASSPATH:+:$HADOOP_CLASSPATH}" "$class" "$@"
