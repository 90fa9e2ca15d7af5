# test/bench/snapshots.sh: part o of test/bench/run, which sources it: what one snapshot over three local shards costs (tessera.snapshot_reads), while
# eight clients write beside. On and off are measured in turn.

# name | aim | what the table shows; aims are milliseconds more per transaction (ms) or the ratio of rates.
snapshot_statements=(
	"sum|<=0.2ms|sum over three shards"
	"keys|<=0.2ms|three rows of three shards in a statement"
	"repeatable|<=0.2ms|REPEATABLE READ READ ONLY, three sums"
	"repeatable-one||REPEATABLE READ READ ONLY, two rows of one shard"
	"read|>=0.98|SELECT of one row by key"
	"write|>=0.98|UPDATE of one row by key"
	"transfer|>=0.95|transfer between two shards"
)

load_snapshots()
{
	local third=10000
	add_third
	sql s1 "CREATE TABLE money $make_table; INSERT INTO money SELECT $make_row FROM generate_series(1, $((3 * third))) g"
	sql s1 "SELECT tessera.shard_table('money', 'k')"
	sql s1 "SELECT tessera.move_range('money', $((third + 1)), $((2 * third + 1)), 's2')" >/dev/null
	sql s1 "SELECT tessera.move_range('money', $((2 * third + 1)), tessera.maxkey(), 's3')" >/dev/null
	settle
	local a="\\set a random(1, $third)" b="\\set b random($((third + 1)), $((2 * third)))" c="\\set c random($((2 * third + 1)), $((3 * third)))"
	local sum="SELECT sum(v) FROM money;" begin="BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
	script o-sum "$sum"
	script o-keys "$a" "$b" "$c" "SELECT k, v FROM money WHERE k IN (:a, :b, :c);"
	script o-repeatable "$begin" "$sum" "$sum" "$sum" "COMMIT;"
	script o-repeatable-one "$b" "$begin" "SELECT v FROM money WHERE k = :b;" "SELECT v FROM money WHERE k = :b;" "COMMIT;"
	script o-read "$b" "SELECT v FROM money WHERE k = :b;"
	script o-write "$b" "UPDATE money SET v = v + 1 WHERE k = :b;"
	script o-transfer "$b" "$c" "BEGIN;" "UPDATE money SET v = v - 1 WHERE k = :b;" "UPDATE money SET v = v + 1 WHERE k = :c;" "COMMIT;"
}

# The same load for both: eight clients of two nodes, so many transactions a second in all, until their sessions are ended.
begin_load()
{
	local node
	load_clients=()
	for node in s2 s3; do
		tessera_run_as timeout 3600 pgbench -n -M prepared -c 4 -j 1 -R "$((snapshot_rate / 2))" -T 3600 -f scripts/o-transfer@1 -f scripts/o-write@1 \
			-h "$TESSERA_RUN/s" -p "${port[$node]}" bench >"$TESSERA_RUN/log/o-load.$node" 2>&1 </dev/null &
		load_clients+=($!)
	done
	sleep 2
}

end_load()
{
	local node
	for node in s2 s3; do
		[ "$(sql $node "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench' AND client_addr IS NULL")" = 4 ] ||
			tessera_die "a client of $node has ended: $(tail -n 5 "$TESSERA_RUN/log/o-load.$node")"
		sql $node "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'pgbench' AND client_addr IS NULL" >/dev/null
	done
	wait "${load_clients[@]}"
}

# Every other round in the opposite order.
snapshots_round()
{
	local entry name how
	begin_load
	for entry in "${snapshot_statements[@]}"; do
		name=${entry%%|*}
		for how in $( ((r % 2)) && echo on off || echo off on); do
			sql s1 "ALTER DATABASE bench SET tessera.snapshot_reads = $how"
			tps "o-$how-$name" s1 prepared 1 "o-$name"
		done
	done
	end_load
	sql s1 "ALTER DATABASE bench RESET tessera.snapshot_reads"
}

# Milliseconds of a transaction, from the rates of one client.
milliseconds()
{
	awk '{ print 1000 / $1 }' "$TESSERA_RUN/figures/$1"
}

report_snapshots()
{
	local entry name aim text more rate verdict
	echo
	line "o  $snapshot_rate writes/s beside; medians of $rounds rounds" off on more "ratio of rates" ""
	for entry in "${snapshot_statements[@]}"; do
		IFS='|' read -r name aim text <<<"$entry"
		more=$(paste <(milliseconds "o-on-$name") <(milliseconds "o-off-$name") | awk '{ print $1 - $2 }' | median)
		rate=$(ratio "o-on-$name" "o-off-$name")
		verdict=
		case $aim in
			*ms) verdict=$(awk -v v="$more" -v aim="${aim//[!0-9.]/}" 'BEGIN { print (v <= aim ? "met" : "missed") }') ;;
			?*) verdict=$(awk -v v="$rate" -v aim="${aim//[!0-9.]/}" 'BEGIN { print (v >= aim ? "met" : "missed") }') ;;
		esac
		line "o  $text" "$(milliseconds "o-off-$name" | median | xargs printf '%.3f ms')" "$(milliseconds "o-on-$name" | median | xargs printf '%.3f ms')" \
			"$(printf '%.3f ms' "$more")" "$(printf '%.3f' "$rate")" "${aim:+aim $aim: $verdict}"
	done
}
