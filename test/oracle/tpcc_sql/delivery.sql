-- test/oracle/tpcc: the oldest new order of each district of a warehouse is delivered.
\set w random(1, :warehouses)
\set carrier random(1, 10)
WITH gone AS (
	DELETE FROM new_order n USING (SELECT no_d_id, min(no_o_id) AS oldest FROM new_order WHERE no_w_id = :w GROUP BY no_d_id) m
	WHERE n.no_w_id = :w AND n.no_d_id = m.no_d_id AND n.no_o_id = m.oldest RETURNING n.no_d_id, n.no_o_id),
carried AS (
	UPDATE orders SET o_carrier_id = :carrier FROM gone WHERE o_w_id = :w AND o_d_id = no_d_id AND o_id = no_o_id RETURNING o_d_id, o_id, o_c_id),
delivered AS (
	UPDATE order_line SET ol_delivery_d = now() FROM gone WHERE ol_w_id = :w AND ol_d_id = no_d_id AND ol_o_id = no_o_id
	RETURNING ol_d_id, ol_o_id, ol_amount)
UPDATE customer SET c_balance = c_balance + s.amount, c_delivery_cnt = c_delivery_cnt + 1
	FROM (SELECT o_d_id, o_c_id, sum(ol_amount) AS amount FROM carried JOIN delivered ON ol_d_id = o_d_id AND ol_o_id = o_id GROUP BY 1, 2) s
	WHERE c_w_id = :w AND c_d_id = s.o_d_id AND c_id = s.o_c_id;
