-- test/oracle/tpcc: an order of five lines, one in ten with goods of another warehouse; one in a hundred is given up at the end.
\set w random(1, :warehouses)
\set d random(1, 10)
\set c random(1, 300)
\set r random(1, 100)
\set other 1 + (:w + random(0, :warehouses - 2)) % :warehouses
\set i1 random(1, :items)
\set q1 random(1, 10)
\set s1 :w
\set i2 random(1, :items)
\set q2 random(1, 10)
\set s2 :w
\set i3 random(1, :items)
\set q3 random(1, 10)
\set s3 :w
\set i4 random(1, :items)
\set q4 random(1, 10)
\set s4 :w
\set i5 random(1, :items)
\set q5 random(1, 10)
\set s5 CASE WHEN :r <= 10 THEN :other ELSE :w END
BEGIN;
SELECT w_tax FROM warehouse WHERE w_id = :w;
UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = :w AND d_id = :d RETURNING d_next_o_id - 1 AS o \gset
SELECT c_last, c_balance FROM customer WHERE c_w_id = :w AND c_d_id = :d AND c_id = :c;
INSERT INTO orders VALUES (:w, :d, :o, :c, now(), NULL, 5);
INSERT INTO new_order VALUES (:w, :d, :o);
UPDATE stock SET s_quantity = CASE WHEN s_quantity >= :q1 + 10 THEN s_quantity - :q1 ELSE s_quantity - :q1 + 91 END, s_ytd = s_ytd + :q1,
	s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + (:s1::int <> :w::int)::int WHERE s_w_id = :s1 AND s_i_id = :i1;
INSERT INTO order_line VALUES (:w, :d, :o, 1, :i1, :s1, :q1, :q1 * (SELECT i_price FROM item WHERE i_id = :i1), NULL);
UPDATE stock SET s_quantity = CASE WHEN s_quantity >= :q2 + 10 THEN s_quantity - :q2 ELSE s_quantity - :q2 + 91 END, s_ytd = s_ytd + :q2,
	s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + (:s2::int <> :w::int)::int WHERE s_w_id = :s2 AND s_i_id = :i2;
INSERT INTO order_line VALUES (:w, :d, :o, 2, :i2, :s2, :q2, :q2 * (SELECT i_price FROM item WHERE i_id = :i2), NULL);
UPDATE stock SET s_quantity = CASE WHEN s_quantity >= :q3 + 10 THEN s_quantity - :q3 ELSE s_quantity - :q3 + 91 END, s_ytd = s_ytd + :q3,
	s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + (:s3::int <> :w::int)::int WHERE s_w_id = :s3 AND s_i_id = :i3;
INSERT INTO order_line VALUES (:w, :d, :o, 3, :i3, :s3, :q3, :q3 * (SELECT i_price FROM item WHERE i_id = :i3), NULL);
UPDATE stock SET s_quantity = CASE WHEN s_quantity >= :q4 + 10 THEN s_quantity - :q4 ELSE s_quantity - :q4 + 91 END, s_ytd = s_ytd + :q4,
	s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + (:s4::int <> :w::int)::int WHERE s_w_id = :s4 AND s_i_id = :i4;
INSERT INTO order_line VALUES (:w, :d, :o, 4, :i4, :s4, :q4, :q4 * (SELECT i_price FROM item WHERE i_id = :i4), NULL);
UPDATE stock SET s_quantity = CASE WHEN s_quantity >= :q5 + 10 THEN s_quantity - :q5 ELSE s_quantity - :q5 + 91 END, s_ytd = s_ytd + :q5,
	s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + (:s5::int <> :w::int)::int WHERE s_w_id = :s5 AND s_i_id = :i5;
INSERT INTO order_line VALUES (:w, :d, :o, 5, :i5, :s5, :q5, :q5 * (SELECT i_price FROM item WHERE i_id = :i5), NULL);
\if :r = 100
ROLLBACK;
\else
COMMIT;
\endif
