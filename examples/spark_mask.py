"""Mask a column of Parquet files on a Spark cluster.

spark-submit --conf spark.task.cpus=2 examples/spark_mask.py MODEL IN OUT COLUMN

MODEL is a packed folder (`fastcore quantize`) at the same path on every machine, whose processes share it. fastcore and
its extra `spark` are installed on all of them, or come with `--archives` as a packed environment.
"""

import sys

from pyspark.sql import SparkSession

import fastcore.spark


def main(model: str, source: str, target: str, column: str) -> None:
    spark = SparkSession.builder.appName("mask").getOrCreate()
    masked = fastcore.spark.mask(spark.read.parquet(source), column, model=model)
    masked.write.mode("errorifexists").parquet(target)
    failed = spark.read.parquet(target).where(f"`{column}_error` is not null").count()
    print(f"rows that failed, and have no text: {failed}")


if __name__ == "__main__":
    main(*sys.argv[1:])
