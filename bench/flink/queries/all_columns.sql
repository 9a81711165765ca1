INSERT INTO all_columns SELECT auction, bidder, price, channel, url, `dateTime`, extra FROM bids;
