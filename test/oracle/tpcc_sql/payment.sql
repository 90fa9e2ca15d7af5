-- test/oracle/tpcc: a payment; three in twenty by a customer of another warehouse.
\set w random(1, :warehouses)
\set d random(1, 10)
\set r random(1, 100)
\set cw CASE WHEN :r <= 15 THEN 1 + (:w + random(0, :warehouses - 2)) % :warehouses ELSE :w END
\set cd random(1, 10)
\set c random(1, 300)
\set a random(100, 500000)
BEGIN;
UPDATE warehouse SET w_ytd = w_ytd + :a / 100.0 WHERE w_id = :w RETURNING w_name;
UPDATE district SET d_ytd = d_ytd + :a / 100.0 WHERE d_w_id = :w AND d_id = :d;
UPDATE customer SET c_balance = c_balance - :a / 100.0, c_ytd_payment = c_ytd_payment + :a / 100.0, c_payment_cnt = c_payment_cnt + 1
	WHERE c_w_id = :cw AND c_d_id = :cd AND c_id = :c;
INSERT INTO history VALUES (:w, :d, :cw, :cd, :c, now(), :a / 100.0);
COMMIT;
