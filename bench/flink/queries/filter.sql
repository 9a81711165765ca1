INSERT INTO two_columns SELECT auction, price FROM bids WHERE MOD(auction, 123) = 0;
