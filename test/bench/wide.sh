# test/bench/wide.sh: part w of test/bench/run, which sources it: statements over all rows of three local shards, against one plain server with parallel
# query at its defaults.

# name | aim | what the table shows | statement
wide_statements=(
	"count|<=1.1|count(*)|SELECT count(*) FROM wide"
	"filter|<=1.1|count(*) with a condition|SELECT count(*) FROM wide WHERE v % 7 = 3"
	"groups|<=1.1|GROUP BY, 100 groups|SELECT g, count(*), sum(v) FROM wide GROUP BY g ORDER BY g"
	"key|<=1.1|GROUP BY the key with LIMIT|SELECT k, count(*) FROM wide GROUP BY k ORDER BY k LIMIT 10"
	"join|<=1.1|join on the key|SELECT count(*), sum(o.w) FROM wide t JOIN wide_other o ON o.k = t.k"
	"top|<=1.1|ORDER BY with LIMIT|SELECT k, v FROM wide ORDER BY v, k LIMIT 10"
	"distinct|<=1.1|DISTINCT, 100 values|SELECT DISTINCT g FROM wide"
	"small|<=1.1|join with a replicated table|SELECT s.name, sum(t.v) FROM wide t JOIN wide_small s ON s.id = t.g GROUP BY s.name"
	"insert|<=1.1|INSERT ... SELECT, colocated|INSERT INTO wide_copy SELECT k, g, v FROM wide"
	"update|<=1.1|UPDATE of all rows|UPDATE wide_copy SET v = v + 1"
)

load_wide()
{
	local name third=$((rows / 3))
	add_third
	for name in plain1 s1; do
		sql $name "CREATE TABLE wide (k int PRIMARY KEY, g int NOT NULL, v int NOT NULL, filler text); CREATE TABLE wide_other (k int PRIMARY KEY, w int NOT NULL);
			CREATE TABLE wide_copy (k int PRIMARY KEY, g int NOT NULL, v int NOT NULL); CREATE TABLE wide_small (id int PRIMARY KEY, name text NOT NULL)"
	done
	sql s1 "SELECT tessera.shard_table('wide', 'k')"
	sql s1 "SELECT tessera.move_range('wide', $((third + 1)), $((2 * third + 1)), 's2')" >/dev/null
	sql s1 "SELECT tessera.move_range('wide', $((2 * third + 1)), tessera.maxkey(), 's3')" >/dev/null
	sql s1 "SELECT tessera.shard_table('wide_other', 'k', colocate_with => 'wide'); SELECT tessera.shard_table('wide_copy', 'k', colocate_with => 'wide')"
	sql s1 "SELECT tessera.replicate_table('wide_small')"
	for name in plain1 s1; do
		sql $name "INSERT INTO wide SELECT g, g % 100, hashint4(g) % 1000000, md5(g::text) FROM generate_series(1, $rows) g"
		sql $name "INSERT INTO wide_other SELECT g, g % 10 FROM generate_series(1, $rows) g"
		sql $name "INSERT INTO wide_small SELECT g, 'name ' || g % 20 FROM generate_series(0, 99) g"
	done
	settle
	sql s3 "VACUUM ANALYZE"
}

# wide_time NAME SERVER STATEMENT: one line more in the file of figures. What reads is measured at its second run in a session.
wide_time()
{
	local commands=("$3")
	case $1 in
		insert) commands=("TRUNCATE wide_copy" "$3") ;;
		update) ;;
		*) commands=("$3" "$3") ;;
	esac
	{ printf '\\timing on\n'; printf '%s;\n' "${commands[@]}"; } |
		tessera_run_as psql -X -q -A -t -v ON_ERROR_STOP=1 -h "$TESSERA_RUN/s" -p "${port[$2]}" -d bench >"$TESSERA_RUN/answer" 2>"$TESSERA_RUN/error" ||
		tessera_die "on $2: $3"$'\n'"$(cat "$TESSERA_RUN/error")"
	sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p' "$TESSERA_RUN/answer" | tail -n 1 >>"$TESSERA_RUN/figures/w-$2-$1"
}

# Through s1; every other round in the opposite order.
wide_round()
{
	local entry name servers=(plain1 s1) server
	((r % 2)) || servers=(s1 plain1)
	for entry in "${wide_statements[@]}"; do
		name=${entry%%|*}
		for server in "${servers[@]}"; do
			wide_time "$name" "$server" "${entry##*|}"
		done
	done
}

report_wide()
{
	local entry name aim text
	echo
	line "w  $rows rows on three local shards; medians of $rounds rounds" plain tessera bound "ratio of tessera" ""
	for entry in "${wide_statements[@]}"; do
		IFS='|' read -r name aim text _ <<<"$entry"
		report "w  $text" ms "w-plain1-$name" "w-s1-$name" - plain "$aim"
	done
}
