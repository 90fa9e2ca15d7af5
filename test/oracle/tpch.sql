-- Tables in the shape of TPC-H, and their rows, on the plain server: "psql -v orders=15000". Every value follows from its row's number, so all runs
-- have the same; no text of the benchmark's own generator is used.
CREATE TABLE region (r_regionkey int PRIMARY KEY, r_name text, r_comment text);
CREATE TABLE nation (n_nationkey int PRIMARY KEY, n_name text, n_regionkey int, n_comment text);
CREATE TABLE supplier (s_suppkey int PRIMARY KEY, s_name text, s_address text, s_nationkey int, s_phone text, s_acctbal numeric(15, 2), s_comment
	text);
CREATE TABLE customer (c_custkey int PRIMARY KEY, c_name text, c_address text, c_nationkey int, c_phone text, c_acctbal numeric(15, 2),
	c_mktsegment text,
	c_comment text);
CREATE TABLE part (p_partkey int PRIMARY KEY, p_name text, p_mfgr text, p_brand text, p_type text, p_size int, p_container text, p_retailprice
	numeric(15, 2),
	p_comment text);
CREATE TABLE partsupp (ps_partkey int, ps_suppkey int, ps_availqty int, ps_supplycost numeric(15, 2), ps_comment text, PRIMARY KEY (ps_partkey,
	ps_suppkey));
CREATE TABLE orders (o_orderkey int PRIMARY KEY, o_custkey int, o_orderstatus text, o_totalprice numeric(15, 2), o_orderdate date, o_orderpriority
	text,
	o_clerk text, o_shippriority int, o_comment text);
CREATE TABLE lineitem (l_orderkey int, l_linenumber int, l_partkey int, l_suppkey int, l_quantity numeric(15, 2), l_extendedprice numeric(15, 2),
	l_discount numeric(15, 2), l_tax numeric(15, 2), l_returnflag text, l_linestatus text, l_shipdate date, l_commitdate date, l_receiptdate date,
	l_shipinstruct text, l_shipmode text, l_comment text, PRIMARY KEY (l_orderkey, l_linenumber));

-- Between 0 and below - 1, of a row's number.
CREATE FUNCTION pick(n bigint, salt int, below int) RETURNS int LANGUAGE sql IMMUTABLE AS
	'SELECT (abs(hashint8extended(n, salt) % 1000000007) % below)::int';
CREATE FUNCTION word(n bigint, salt int, words text[]) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT words[1 + pick(n, salt, cardinality(words))]';
CREATE FUNCTION words(n bigint, salt int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
	SELECT string_agg(word(n, salt * 100 + i, '{quick,special,Customer,requests,pending,deposits,Complaints,silent,packages,even,bold,final}'), ' ')
	FROM generate_series(1, 6) i
$$;
CREATE FUNCTION phone(n bigint, nation int) RETURNS text LANGUAGE sql IMMUTABLE AS
	$$ SELECT (10 + nation) || '-' || 100 + pick(n, 1, 900) || '-' || 100 + pick(n, 2, 900) || '-' || 1000 + pick(n, 3, 9000) $$;

INSERT INTO region SELECT i - 1, word, words(i, 1) FROM unnest('{AFRICA,AMERICA,ASIA,EUROPE,MIDDLE EAST}'::text[]) WITH ORDINALITY w(word, i);
INSERT INTO nation SELECT i - 1, word, (i - 1) % 5, words(i, 2) FROM unnest('{ALGERIA,ARGENTINA,CHINA,FRANCE,EGYPT,ETHIOPIA,BRAZIL,INDIA,GERMANY,IRAN,KENYA,CANADA,
	INDONESIA,ROMANIA,IRAQ,MOROCCO,PERU,JAPAN,RUSSIA,JORDAN,MOZAMBIQUE,UNITED STATES,VIETNAM,UNITED KINGDOM,SAUDI ARABIA}'::text[]) WITH ORDINALITY w(word, i);
INSERT INTO supplier SELECT i, 'Supplier#' || lpad(i::text, 9, '0'), words(i, 4), n, phone(i, n), pick(i, 5, 1100000) / 100.0 - 1000, words(i, 6)
	FROM (SELECT i, pick(i, 3, 25) AS n FROM generate_series(1, :orders / 150) i) s;
INSERT INTO customer SELECT i, 'Customer#' || lpad(i::text, 9, '0'), words(i, 8), n, phone(i, n), pick(i, 9, 1100000) / 100.0 - 1000,
	word(i, 10, '{AUTOMOBILE,BUILDING,FURNITURE,MACHINERY,HOUSEHOLD}'), words(i, 11) FROM (SELECT i, pick(i, 7, 25) AS n FROM generate_series(1,
		:orders / 10) i) c;
INSERT INTO part SELECT i, word(i, 20, '{almond,azure,blush,forest,green}') || ' ' || word(i, 21, '{ivory,lemon,navy,plum,rose}'), 'Manufacturer#'
	|| m, 'Brand#' || m || 1 + pick(i, 13, 5),
	word(i, 14, '{STANDARD,SMALL,MEDIUM,LARGE,ECONOMY,PROMO}') || ' ' || word(i, 15, '{ANODIZED,BURNISHED,PLATED,POLISHED,BRUSHED}') || ' ' ||
	word(i, 16, '{TIN,NICKEL,BRASS,STEEL,COPPER}'), 1 + pick(i, 17, 50), word(i, 18, '{SM,LG,MED,JUMBO,WRAP}') || ' ' || word(i, 19,
		'{CASE,BOX,BAG,JAR,PKG,PACK,CAN,DRUM}'),
	900 + i % 1000 / 10.0, words(i, 22) FROM (SELECT i, 1 + pick(i, 12, 5) AS m FROM generate_series(1, :orders / 8) i) p;
INSERT INTO partsupp SELECT p, 1 + (p + n * (1 + :orders / 600)) % (:orders / 150), 1 + pick(p * 4 + n, 23, 9999), 1 + pick(p * 4 + n, 24, 100000)
	/ 100.0, words(p * 4 + n, 25)
	FROM generate_series(1, :orders / 8) p, generate_series(0, 3) n ON CONFLICT DO NOTHING;
INSERT INTO orders SELECT i, 1 + pick(i, 26, :orders / 15) * 3 / 2, 'O', 0, DATE '1992-01-01' + pick(i, 27, 2405), word(i, 28,
	'{1-URGENT,2-HIGH,3-MEDIUM,4-NOT SPECIFIED,5-LOW}'),
	'Clerk#' || pick(i, 29, 1000), 0, words(i, 30) FROM generate_series(1, :orders) i;
INSERT INTO lineitem SELECT o, n, p, 1 + (p + pick(k, 32, 4) * (1 + :orders / 600)) % (:orders / 150), q, q * (900 + p % 1000 / 10.0), pick(k, 34,
	11) / 100.0, pick(k, 35, 9) / 100.0,
	CASE WHEN r > DATE '1995-06-17' THEN 'N' ELSE word(k, 36, '{R,A}') END, CASE WHEN s > DATE '1995-06-17' THEN 'O' ELSE 'F' END, s, d + 30 +
		pick(k, 39, 61), r,
	word(k, 40, '{DELIVER IN PERSON,COLLECT COD,NONE,TAKE BACK RETURN}'), word(k, 41, '{REG AIR,AIR,RAIL,SHIP,TRUCK,MAIL,FOB}'), words(k, 42)
	FROM (SELECT *, s + 1 + pick(k, 38, 30) AS r FROM (SELECT o_orderkey AS o, n, k, o_orderdate AS d, 1 + pick(k, 31, :orders / 8) AS p, 1 +
		pick(k, 33, 50) AS q,
		o_orderdate + 1 + pick(k, 37, 121) AS s FROM orders, generate_series(1, 1 + pick(o_orderkey, 43, 7)) n, LATERAL (SELECT o_orderkey * 8 + n)
			x(k)) l) l;
UPDATE orders SET o_totalprice = t, o_orderstatus = s FROM (SELECT l_orderkey, sum(l_extendedprice * (1 + l_tax) * (1 - l_discount)) AS t,
	CASE WHEN bool_and(l_linestatus = 'F') THEN 'F' WHEN bool_and(l_linestatus = 'O') THEN 'O' ELSE 'P' END AS s FROM lineitem GROUP BY 1) l WHERE
		l_orderkey = o_orderkey;
