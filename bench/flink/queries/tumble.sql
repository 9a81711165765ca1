INSERT INTO counts
  SELECT bidder, COUNT(*), window_start
  FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND))
  GROUP BY bidder, window_start, window_end;
