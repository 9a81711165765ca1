-- The bids, as the StreamForge jobs see them: seven columns, event time from dateTime, at most
-- 4 s out of order. @INPUT@ is the folder of NDJSON files.
CREATE TABLE bids (
  auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `dateTime` BIGINT,
  extra STRING,
  ts AS TO_TIMESTAMP_LTZ(`dateTime`, 3),
  WATERMARK FOR ts AS ts - INTERVAL '4' SECOND
) WITH ('connector' = 'filesystem', 'path' = 'file://@INPUT@', 'format' = 'json');
CREATE TABLE all_columns (
  auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `dateTime` BIGINT,
  extra STRING
) WITH ('connector' = 'blackhole');
CREATE TABLE two_columns (auction BIGINT, price BIGINT) WITH ('connector' = 'blackhole');
CREATE TABLE counts (k BIGINT, n BIGINT, window_start TIMESTAMP_LTZ(3))
  WITH ('connector' = 'blackhole');
