-- The topic of bids, as the StreamForge job sees it: seven columns, event time from dateTime, at most
-- 4 s out of order. @BOOTSTRAP@ and @DELIVERY@ are filled in; a transaction lives ten minutes.
CREATE TABLE bids (
  auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `dateTime` BIGINT,
  extra STRING,
  ts AS TO_TIMESTAMP_LTZ(`dateTime`, 3),
  WATERMARK FOR ts AS ts - INTERVAL '4' SECOND
) WITH (
  'connector' = 'kafka', 'topic' = 'bids', 'properties.bootstrap.servers' = '@BOOTSTRAP@',
  'properties.group.id' = 'flink', 'scan.startup.mode' = 'earliest-offset',
  'scan.bounded.mode' = 'latest-offset', 'format' = 'json');
CREATE TABLE counts (k BIGINT, n BIGINT, window_start TIMESTAMP_LTZ(3)) WITH (
  'connector' = 'kafka', 'topic' = 'flink_out', 'properties.bootstrap.servers' = '@BOOTSTRAP@',
  'format' = 'json', 'sink.delivery-guarantee' = '@DELIVERY@',
  'sink.transactional-id-prefix' = 'flink', 'properties.transaction.timeout.ms' = '600000');
