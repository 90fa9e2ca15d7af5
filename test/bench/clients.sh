# test/bench/clients.sh: part k of test/bench/run, which sources it: many clients of one node that owns a third of the rows; prepared reads of one row by key,
# against one plain server. A run begins with new sessions, so what opening their connections to the shards costs is in it; a longer one shows what stays.

client_counts=${BENCH_CLIENTS:-8 64 300 500}
client_cap=${BENCH_CAP:-100}		# tessera.max_connections_per_shard of the capped runs
client_lengths=${BENCH_LENGTHS:-6 30}	# seconds

load_clients()
{
	local name third=$((half * 2 / 3))
	add_third
	for name in plain1 s1; do
		sql $name "CREATE TABLE client_rows $make_table; INSERT INTO client_rows SELECT $make_row FROM generate_series(1, $((2 * half))) g"
	done
	sql s1 "SELECT tessera.shard_table('client_rows', 'k')"
	sql s1 "SELECT tessera.move_range('client_rows', $((third + 1)), $((2 * third + 1)), 's2')" >/dev/null
	sql s1 "SELECT tessera.move_range('client_rows', $((2 * third + 1)), tessera.maxkey(), 's3')" >/dev/null
	settle
	sql s3 "VACUUM ANALYZE"
	script read-clients "\\set k random(1, $((2 * half)))" "SELECT v FROM client_rows WHERE k = :k;"
}

# set_cap N: of s1, and waits until no connection of an earlier run is left.
set_cap()
{
	local try
	sql s1 "ALTER SYSTEM SET tessera.max_connections_per_shard = $1" >/dev/null
	sql s1 "SELECT pg_reload_conf()" >/dev/null
	for ((try = 0; try < 300; try++)); do
		[ "$(sql s1 'SELECT coalesce(sum(open), 0) FROM tessera.node_connections')" -gt 0 ] || break
		sleep 0.1
	done
}

# Sessions that fail are counted: a server that cannot open connections fast enough refuses some.
client_run()
{
	local figure=$1 server=$2 clients=$3 length=$4 out
	out=$(tessera_run_as timeout $((length + 120)) pgbench -n -M prepared -c "$clients" -j 2 -T "$length" -f scripts/read-clients -h "$TESSERA_RUN/s" -p "${port[$server]}" bench 2>&1 </dev/null)
	sed -n 's/^tps = \([0-9.]*\).*/\1/p' <<<"$out" >>"$TESSERA_RUN/figures/$figure"
	grep -c 'aborted' <<<"$out" >>"$TESSERA_RUN/figures/$figure-failed"
}

clients_round()
{
	local clients length
	for clients in $client_counts; do
		for length in $client_lengths; do
			client_run "k-plain-$clients-$length" plain1 "$clients" "$length"
			set_cap 0
			client_run "k-tessera-$clients-$length" s1 "$clients" "$length"
			[ "$clients" -gt "$client_cap" ] || continue
			set_cap "$client_cap"
			client_run "k-capped-$clients-$length" s1 "$clients" "$length"
			sql s1 "SELECT max(open) || ' of $client_cap, ' || sum(opened) || ' opened' FROM tessera.node_connections" >"$TESSERA_RUN/figures/k-open"
		done
	done
	set_cap 0
}

clients_figure()
{
	local file="$TESSERA_RUN/figures/$1" failed
	[ -s "$file" ] || { echo -; return; }
	failed=$(sort -n "$file-failed" | tail -n 1)
	printf '%.0f /s%s' "$(median <"$file")" "$([ "$failed" -eq 0 ] || echo " ($failed failed)")"
}

report_clients()
{
	local clients length
	echo
	printf '%-52s %16s %22s %22s\n' "prepared reads by key through a node with a third" plain tessera "cap of $client_cap"
	for length in $client_lengths; do
		for clients in $client_counts; do
			printf '%-52s %16s %22s %22s\n' "k  $clients clients, $length s with opening" "$(clients_figure "k-plain-$clients-$length")" \
				"$(clients_figure "k-tessera-$clients-$length")" "$(clients_figure "k-capped-$clients-$length")"
		done
	done
}
