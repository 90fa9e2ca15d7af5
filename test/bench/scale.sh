# test/bench/scale.sh: part s of test/bench/run, which sources it: a cluster of many shards, the databases of four servers, on this machine. How long it
# takes to plan a statement and to ask all shards, and how much memory a sorted result of many rows takes on the router.

scale_servers=4

# scale_node NUMBER: server and database of a shard, as a connection string; shard 1 is the config node.
scale_node()
{
	echo "host=127.0.0.1 port=${port[q$((($1 - 1) % scale_servers + 1))]} dbname=shard$1 user=$tessera_user"
}

# scale_sql SQL: by the router, a node that owns nothing.
scale_sql()
{
	tessera_run_as psql -X -q -A -t -v ON_ERROR_STOP=1 "host=127.0.0.1 port=${port[q1]} dbname=router user=$tessera_user" -c "$1" </dev/null 2>"$TESSERA_RUN/error" ||
		tessera_die "on the router: $1"$'\n'"$(cat "$TESSERA_RUN/error")"
}

# scale_wait SQL: until it answers t; ten minutes at most.
scale_wait()
{
	local try
	for ((try = 0; try < 3000; try++)); do
		[ "$(scale_sql "$1")" != t ] || return 0
		sleep 0.2
	done
	tessera_die "not within ten minutes: $1"
}

start_scale()
{
	local i
	for ((i = 1; i <= scale_servers; i++)); do
		tessera_server_create "$TESSERA_RUN/q$i" "${settings[@]}" "shared_buffers = 128MB" "max_connections = 600" "max_worker_processes = 400" \
			"max_replication_slots = 200" "max_wal_senders = 200" || exit 1
		tessera_server_start "$TESSERA_RUN/q$i" "$TESSERA_RUN/log/q$i" || exit 1
		port[q$i]=$tessera_port
	done
	for ((i = 1; i <= scale_shards; i++)); do
		tessera_run_as createdb -h "$TESSERA_RUN/s" -p "${port[q$((((i - 1)) % scale_servers + 1))]}" "shard$i" || exit 1
	done
	tessera_run_as createdb -h "$TESSERA_RUN/s" -p "${port[q1]}" router || exit 1
	tessera_run_as psql -X -q -A -t -v ON_ERROR_STOP=1 "$(scale_node 1)" -c "CREATE EXTENSION tessera" \
		-c "SELECT tessera.create_cluster('scale', '$(scale_node 1)', shard => 'q1')" \
		-c "SELECT tessera.add_router('router', 'host=127.0.0.1 port=${port[q1]} dbname=router user=$tessera_user')" >/dev/null || exit 1
	for ((i = 2; i <= scale_shards; i++)); do
		timed s-add scale_sql "SELECT tessera.add_shard('q$i', '$(scale_node $i)')" >/dev/null
	done
	tessera_say "$SECONDS s: $scale_shards shards"
}

load_scale()
{
	scale_sql "CREATE TABLE big (k int PRIMARY KEY, g int NOT NULL, v int NOT NULL, filler text)"
	scale_sql "SELECT tessera.shard_table('big', 'k', strategy => 'hash', chunks => $((4 * scale_shards)))" >/dev/null
	timed s-spread scale_wait "SELECT tessera.balancer_round() IS NULL OR count(DISTINCT shard) = $scale_shards FROM tessera.chunks"
	scale_sql "SELECT tessera.stop_balancer()" >/dev/null
	timed s-load scale_sql "INSERT INTO big SELECT g, g % 100, hashint4(g), 'row ' || g FROM generate_series(1, $scale_rows) g"
	scale_sql "VACUUM ANALYZE big"
	tessera_say "$SECONDS s: $scale_rows rows"
}

# scale_times SQL FIGURE...: what psql's \timing says of the statements of one session of the router.
scale_times()
{
	local sql=$1
	shift
	printf '%s\n' '\timing on' "$sql" | tessera_run_as psql -X -q -A -t -v ON_ERROR_STOP=1 "host=127.0.0.1 port=${port[q1]} dbname=router user=$tessera_user" \
		>"$TESSERA_RUN/answer" 2>"$TESSERA_RUN/error" || tessera_die "on the router: $sql"$'\n'"$(cat "$TESSERA_RUN/error")"
	times "$@" <"$TESSERA_RUN/answer"
}

# The time of planning that EXPLAIN tells, of the second planning in a session.
scale_plan()
{
	printf '%s\n' "EXPLAIN (SUMMARY) $2;" "EXPLAIN (SUMMARY) $2;" |
		tessera_run_as psql -X -q -A -t -v ON_ERROR_STOP=1 "host=127.0.0.1 port=${port[q1]} dbname=router user=$tessera_user" |
		sed -n 's/.*Planning Time: \([0-9.]*\) ms.*/\1/p' | tail -n 1 >>"$TESSERA_RUN/figures/$1"
}

scale_round()
{
	local one="SELECT v FROM big WHERE k = 4711;" all="SELECT count(*) FROM big WHERE k < 0;"
	scale_plan s-plan-one "$one"
	scale_plan s-plan-all "$all"
	scale_plan s-plan-groups "SELECT g, sum(v) FROM big GROUP BY g;"
	scale_times "$one $one $all $all SELECT count(*) FROM big; SELECT g, sum(v) FROM big GROUP BY g;" \
		s-one-first s-one s-all-first s-all s-count s-groups
}

# A sorted result of all rows: time, and the most memory of its own that the router's backend had.
scale_sorted()
{
	tessera_run_as psql -X -q -A -t -v ON_ERROR_STOP=1 "host=127.0.0.1 port=${port[q1]} dbname=router user=$tessera_user" >"$TESSERA_RUN/answer" 2>"$TESSERA_RUN/error" <<-'SQL' ||
		SELECT pg_backend_pid() AS pid \gset
		\setenv BACKEND :pid
		SELECT count(*) FROM big WHERE k < 0;
		\! awk '/VmHWM/ { all = $2 } /RssShmem/ { print "before", (all - $2) / 1024 }' /proc/$BACKEND/status
		\timing on
		\copy (SELECT k, v FROM big ORDER BY v) TO /dev/null
		\timing off
		\! awk '/VmHWM/ { all = $2 } /RssShmem/ { print "after", (all - $2) / 1024 }' /proc/$BACKEND/status
	SQL
		tessera_die "a sorted result: $(cat "$TESSERA_RUN/error")"
	times s-sorted <"$TESSERA_RUN/answer"
	sed -n 's/^before //p' "$TESSERA_RUN/answer" >>"$TESSERA_RUN/figures/s-memory-before"
	sed -n 's/^after //p' "$TESSERA_RUN/answer" >>"$TESSERA_RUN/figures/s-memory-after"
}

# scale_figure TEXT NAME UNIT
scale_figure()
{
	line "s  $1" - "$(median <"$TESSERA_RUN/figures/$2" | xargs printf "%.2f $3")" - "" ""
}

report_scale()
{
	echo
	echo "s  $scale_shards shards (databases of $scale_servers servers), $scale_rows rows, through a router; medians"
	scale_figure "adding a shard" s-add ms
	scale_figure "spreading $((4 * scale_shards)) empty chunks" s-spread ms
	scale_figure "INSERT ... SELECT of all rows" s-load ms
	scale_figure "planning a SELECT by key" s-plan-one ms
	scale_figure "planning count(*) over all shards" s-plan-all ms
	scale_figure "planning GROUP BY over all shards" s-plan-groups ms
	scale_figure "SELECT by key, first of a session" s-one-first ms
	scale_figure "SELECT by key, the next" s-one ms
	scale_figure "a question to all shards, first of a session" s-all-first ms
	scale_figure "a question to all shards, the next" s-all ms
	scale_figure "count(*) of all rows" s-count ms
	scale_figure "GROUP BY, 100 groups" s-groups ms
	scale_figure "all rows in an order" s-sorted ms
	scale_figure "memory of the router's process, connected" s-memory-before MB
	scale_figure "memory of the router's process, all rows in an order" s-memory-after MB
}
