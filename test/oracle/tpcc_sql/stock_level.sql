-- test/oracle/tpcc: how many of the goods of a district's last twenty orders run out.
\set w random(1, :warehouses)
\set d random(1, 10)
\set least random(10, 20)
SELECT count(DISTINCT s_i_id) FROM district, order_line, stock
	WHERE d_w_id = :w AND d_id = :d AND ol_w_id = :w AND ol_d_id = :d AND ol_o_id >= d_next_o_id - 20 AND ol_o_id < d_next_o_id
	AND s_w_id = :w AND s_i_id = ol_i_id AND s_quantity < :least;
