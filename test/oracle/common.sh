# common.sh: what the drivers of test/oracle share (bash; sourced after lib.sh): a plain server, and a cluster of shards s1, s2, s3 (s1 is the config node,
# too) and the router r1, which owns nothing. port[NAME] is each server's. Whatever a driver leaves goes below $results.

declare -A port
results=${ORACLE_DIR:-$(mktemp -d /tmp/tessera-oracle.XXXXXX)}

oracle_finish()
{
	local status=$?
	trap '' INT TERM HUP
	[ -z "${TESSERA_RUN:-}" ] || {
		tessera_sweep
		rm -rf "$TESSERA_RUN"
	}
	exit "$status"
}

# Builds, installs, makes TESSERA_RUN and $results; ends what runs when the driver ends.
oracle_begin()
{
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	trap oracle_finish EXIT
	tessera_need_packages "${tessera_packages[@]}" "$@" || exit 1
	tessera_find_postgres
	tessera_say "building with $PG_CONFIG"
	tessera_build_install || tessera_die "could not build"
	tessera_find_user
	tessera_make_run
	mkdir -p "$results" && chmod 755 "$results"
	[ "$EUID" -ne 0 ] || chown "$tessera_user:" "$results"
}

# psql_on SERVER [ARGUMENT...]: psql as the superuser in the database regression.
psql_on()
{
	local server=$1
	shift
	tessera_run_as psql -X -q -v ON_ERROR_STOP=1 -h "$TESSERA_RUN/s" -p "${port[$server]}" -d regression "$@"
}

# sql SERVER SQL: the rows, unaligned; ends the driver on an error.
sql()
{
	psql_on "$1" -A -t -c "$2" </dev/null 2>"$TESSERA_RUN/error" || tessera_die "on $1: $2"$'\n'"$(cat "$TESSERA_RUN/error")"
}

# oracle_server NAME LABEL LOGS [SETTING...]
oracle_server()
{
	local name=$1 label=$2 logs=$3
	shift 3
	tessera_server_create "$TESSERA_RUN/$label.$name" "$@" || exit 1
	tessera_server_start "$TESSERA_RUN/$label.$name" "$logs/$name.server.log" || exit 1
	port[$name]=$tessera_port
	tessera_run_as createdb -T template0 --locale=C -h "$TESSERA_RUN/s" -p "$tessera_port" regression || exit 1
}

# oracle_cluster LABEL LOGS: the servers plain, s1, s2, s3, r1; LABEL is part of the names of their folders, LOGS where their logs go.
oracle_cluster()
{
	local name
	oracle_server plain "$1" "$2" "shared_preload_libraries = ''"
	for name in s1 s2 s3 r1; do
		oracle_server $name "$1" "$2" "tessera.balancer_interval = 3600" "max_prepared_transactions = 100"
	done
	sql s1 "CREATE EXTENSION tessera"
	sql s1 "SELECT tessera.create_cluster('oracle', 'host=127.0.0.1 port=${port[s1]} dbname=regression user=$tessera_user', shard => 's1')"
	for name in s2 s3; do
		sql s1 "SELECT tessera.add_shard('$name', 'host=127.0.0.1 port=${port[$name]} dbname=regression user=$tessera_user')" >/dev/null
	done
	sql s1 "SELECT tessera.add_router('r1', 'host=127.0.0.1 port=${port[r1]} dbname=regression user=$tessera_user')" >/dev/null
}

# oracle_check LOGS: what must hold at the end; false if it does not.
oracle_check()
{
	local findings
	findings=$(sql s1 "SELECT count(*) || ' findings of check_consistency' || coalesce(': ' || string_agg(v::text, ' '), '') FROM tessera.check_consistency(deep => true) v")
	echo "$findings"
	! grep -lE 'terminated by signal|PANIC' "$1"/*.server.log || { echo "a server has crashed" && return 1; }
	[[ $findings == "0 findings"* ]]
}
