-- test/oracle/tpcc: what must hold after any number of transactions; a row for each condition that does not, with how often.
SELECT condition, n FROM (
	SELECT 'a warehouse has what its districts have' AS condition, count(*) AS n
		FROM warehouse JOIN (SELECT d_w_id, sum(d_ytd) AS ytd FROM district GROUP BY 1) d ON d_w_id = w_id WHERE w_ytd <> ytd
	UNION ALL SELECT 'a warehouse has what was paid', count(*)
		FROM warehouse LEFT JOIN (SELECT h_w_id, sum(h_amount) AS paid FROM history GROUP BY 1) h ON h_w_id = w_id WHERE w_ytd <> coalesce(paid, 0)
	UNION ALL SELECT 'a district has what was paid', count(*)
		FROM district LEFT JOIN (SELECT h_w_id, h_d_id, sum(h_amount) AS paid FROM history GROUP BY 1, 2) h ON h_w_id = d_w_id AND h_d_id = d_id
		WHERE d_ytd <> coalesce(paid, 0)
	UNION ALL SELECT 'orders of a district are numbered without a gap', count(*)
		FROM district LEFT JOIN (SELECT o_w_id, o_d_id, count(*) AS n, max(o_id) AS last FROM orders GROUP BY 1, 2) o ON o_w_id = d_w_id AND o_d_id = d_id
		WHERE d_next_o_id - 1 <> coalesce(last, 0) OR coalesce(n, 0) <> coalesce(last, 0)
	UNION ALL SELECT 'new orders are the last ones', count(*)
		FROM (SELECT max(no_o_id) - min(no_o_id) + 1 AS span, count(*) AS n FROM new_order GROUP BY no_w_id, no_d_id) s WHERE span <> n
	UNION ALL SELECT 'an order has a carrier when it is new no longer', count(*)
		FROM orders LEFT JOIN new_order ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)
	UNION ALL SELECT 'an order has its lines', count(*)
		FROM orders LEFT JOIN (SELECT ol_w_id, ol_d_id, ol_o_id, count(*) AS n FROM order_line GROUP BY 1, 2, 3) l
		ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id WHERE o_ol_cnt <> coalesce(n, 0)
	UNION ALL SELECT 'a line belongs to an order', count(*)
		FROM order_line LEFT JOIN orders ON o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id WHERE o_id IS NULL
	UNION ALL SELECT 'lines are delivered with their order', count(*)
		FROM order_line JOIN orders ON o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id WHERE (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)
	UNION ALL SELECT 'a customer owes what was delivered, and paid', count(*)
		FROM customer
		LEFT JOIN (SELECT o_w_id, o_d_id, o_c_id, sum(ol_amount) AS owed FROM orders
			JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id WHERE ol_delivery_d IS NOT NULL GROUP BY 1, 2, 3) o
			ON o_w_id = c_w_id AND o_d_id = c_d_id AND o_c_id = c_id
		LEFT JOIN (SELECT h_c_w_id, h_c_d_id, h_c_id, sum(h_amount) AS paid FROM history GROUP BY 1, 2, 3) h
			ON h_c_w_id = c_w_id AND h_c_d_id = c_d_id AND h_c_id = c_id
		WHERE c_balance <> coalesce(owed, 0) - coalesce(paid, 0) OR c_ytd_payment <> coalesce(paid, 0)
	UNION ALL SELECT 'stock has given what was ordered', count(*)
		FROM stock LEFT JOIN (SELECT ol_supply_w_id, ol_i_id, sum(ol_quantity) AS given, count(*) AS n FROM order_line GROUP BY 1, 2) l
		ON ol_supply_w_id = s_w_id AND ol_i_id = s_i_id WHERE s_ytd <> coalesce(given, 0) OR s_order_cnt <> coalesce(n, 0)) c
WHERE n > 0;
