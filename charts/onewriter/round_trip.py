"""What `helm test` runs of the pipeline: ten rows to a topic, once though written twice, and back."""

import sys

from pyspark.sql import SparkSession

ROWS = 10


def main(url: str, topic: str, token_file: str = "", ca_file: str = "") -> int:
    """Write, write again, read; answers the exit code."""
    given = {"admin.url": url, "topic": topic, "authTokenFile": token_file, "tls.caFile": ca_file}
    access = {name: value for name, value in given.items() if value}
    spark = (
        SparkSession.builder.appName("onewriter round trip")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    rows = spark.range(ROWS).coalesce(1).selectExpr("cast(id as string) as value")
    for _ in range(2):
        rows.write.format("onewriter").mode("append").options(
            **access, txnAppId="helm-test", txnVersion=1
        ).save()
    read = spark.read.format("onewriter").options(**access).load()
    found = [int(row.value) for row in read.select("value").collect()]
    epochs = read.select("__epoch").distinct().count()
    spark.stop()
    if sorted(found) != list(range(ROWS)) or epochs != 1:
        print(f"{ROWS} rows were written, and these came back, of {epochs} epochs: {found}")
        return 1
    print(f"{ROWS} rows, each once, of one epoch")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
