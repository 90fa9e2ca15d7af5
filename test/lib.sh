# lib.sh: what the drivers of tests, demo and benchmarks share (bash; sourced).
#
# Who does what: the caller's user builds; root (the caller, or sudo) installs packages and the extension; servers run as tessera_user, because
# PostgreSQL refuses root. Everything that runs leaves its files below one private directory, TESSERA_RUN, and every process of a run is known by it
# (working directory, or TESSERA_RUN in its environment), so that tessera_sweep finds exactly these processes and no others.

tessera_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PG_CONFIG=${PG_CONFIG:-pg_config}
export LC_ALL=C PYTHONDONTWRITEBYTECODE=1

# Settings of the caller's own sessions must not leak into ours.
for tessera_variable in $(compgen -v PG); do
	[ "$tessera_variable" = PG_CONFIG ] || unset "$tessera_variable"
done
unset tessera_variable

# Debian 12 packages that building and testing need.
tessera_packages=(gcc libc6-dev make pkg-config postgresql-15 postgresql-client-15 postgresql-server-dev-15 libpq-dev libzmq3-dev libbson-dev liblz4-dev
	perl libipc-run-perl libio-pty-perl libyaml-libyaml-perl python3 binutils util-linux procps)

# Clients of test/tap/clients/psycopg_and_jdbc; what cannot be installed is not tested.
tessera_client_packages=(python3-psycopg2 python3-psycopg libpostgresql-jdbc-java openjdk-17-jdk-headless)

# The exporter of test/tap/operations/monitoring; if it cannot be installed, nothing is scraped.
tessera_monitoring_packages=(prometheus-postgres-exporter)

tessera_say()
{
	printf '# %s\n' "$*"
}

tessera_die()
{
	printf 'error: %s\n' "$*" >&2
	exit 1
}

# Runs a command as root: directly, or by sudo that asks nothing.
tessera_as_root()
{
	if [ "$EUID" -eq 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo -n "$@"
	else
		echo "error: this needs root: run as root or install sudo: $*" >&2
		return 1
	fi
}

# Installs those of the packages given (default: tessera_packages) that are missing. Does nothing, and needs no root, if all are there.
tessera_need_packages()
{
	local package missing=()
	[ $# -gt 0 ] || set -- "${tessera_packages[@]}"
	for package in "$@"; do
		[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	tessera_say "installing: ${missing[*]}"
	# No server of the distribution's own is wanted.
	if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
		tessera_as_root mkdir -p /etc/postgresql-common &&
			tessera_as_root sh -c 'echo create_main_cluster = false > /etc/postgresql-common/createcluster.conf' || return 1
	fi
	# Nor is anything else to run as a service: not now, and, of what exporters bring, not after the next boot.
	local policy=/usr/sbin/policy-rc.d made=
	if [ ! -e "$policy" ]; then
		tessera_as_root sh -c 'printf "#!/bin/sh\nexit 101\n" >"$1" && chmod 755 "$1"' sh "$policy" || return 1
		made=yes
	fi
	local apt=(timeout --foreground 900 env DEBIAN_FRONTEND=noninteractive UCF_FORCE_CONFFOLD=1 apt-get -q -y -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0)
	local log status
	log=$(mktemp) || return 1
	{ tessera_as_root "${apt[@]}" update && tessera_as_root "${apt[@]}" install --no-install-recommends "${missing[@]}"; } </dev/null >"$log" 2>&1
	status=$?
	[ -z "$made" ] || tessera_as_root rm -f "$policy"
	if [ "$status" -eq 0 ]; then
		for package in "${missing[@]}"; do
			case $package in *-exporter) tessera_as_root update-rc.d "$package" disable >/dev/null 2>&1 ;; esac
		done
		rm -f "$log"
	else
		tail -n 30 "$log" >&2
		echo "error: could not install packages; whole output: $log" >&2
		return 1
	fi
}

# Finds the PostgreSQL installation that PG_CONFIG names: sets tessera_bindir, tessera_pkglibdir, tessera_pgxs (folder of PGXS).
tessera_find_postgres()
{
	command -v "$PG_CONFIG" >/dev/null || tessera_die "pg_config not found: set PG_CONFIG"
	PG_CONFIG=$(command -v "$PG_CONFIG")
	tessera_bindir=$("$PG_CONFIG" --bindir)
	tessera_pkglibdir=$("$PG_CONFIG" --pkglibdir)
	tessera_pgxs=$(dirname "$("$PG_CONFIG" --pgxs)")/../..
	tessera_pgxs=$(cd "$tessera_pgxs" && pwd) || tessera_die "no PGXS for $PG_CONFIG: install postgresql-server-dev-15"
	case $("$PG_CONFIG" --version) in
		"PostgreSQL 15."*) ;;
		*) tessera_die "$PG_CONFIG is of $("$PG_CONFIG" --version): set PG_CONFIG to the one of PostgreSQL 15" ;;
	esac
	[ -x "$tessera_bindir/postgres" ] || tessera_die "no server in $tessera_bindir: install postgresql-15"
	export PG_CONFIG
}

# Builds in the source tree with warnings as errors and installs, by sudo only where the installation is not ours to write. With "tests": what only tests need as well.
tessera_build_install()
{
	local jobs make=(make -s -C "$tessera_root" PG_CONFIG="$PG_CONFIG" COPT=-Werror TESTS_BUILD=)
	[ "${1:-}" != tests ] || make+=(TESTS_BUILD=1)
	jobs=$(nproc)
	timeout --foreground 900 "${make[@]}" -j"$jobs" all || return 1
	if [ -w "$tessera_pkglibdir" ] && [ -w "$("$PG_CONFIG" --sharedir)" ] && [ -w "$("$PG_CONFIG" --sharedir)/extension" ]; then
		timeout --foreground 120 "${make[@]}" install
	else
		tessera_as_root timeout --foreground 120 "${make[@]}" install
	fi >/dev/null
}

# Sets tessera_user: who runs servers. The caller, unless that is root; then $TESSERA_TEST_USER, by default the system user tessera-test (made if missing).
tessera_find_user()
{
	if [ "$EUID" -ne 0 ]; then
		tessera_user=$(id -un)
		return
	fi
	tessera_user=${TESSERA_TEST_USER:-tessera-test}
	if ! id -u "$tessera_user" >/dev/null 2>&1; then
		useradd --system --user-group --home-dir /nonexistent --shell /usr/sbin/nologin "$tessera_user" ||
			tessera_die "could not create the user $tessera_user"
	fi
	[ "$(id -u "$tessera_user")" -ne 0 ] || tessera_die "TESSERA_TEST_USER must not be root"
}

# Runs a command as tessera_user, from TESSERA_RUN, with the PostgreSQL programs in front of PATH. env and timeout may be part of the command.
tessera_run_as()
{
	local as=()
	[ "$EUID" -ne 0 ] || as=(runuser -u "$tessera_user" --)
	# The subshell keeps this shell's directory; exec keeps the process the caller's own child.
	(
		cd "$TESSERA_RUN" || exit 1
		exec "${as[@]}" env PATH="$tessera_bindir:$PATH" HOME="$TESSERA_RUN" USER="$tessera_user" LOGNAME="$tessera_user" \
			TMPDIR="$TESSERA_RUN/tmp" TESSERA_RUN="$TESSERA_RUN" "$@"
	)
}

# tessera_make_run [DIR]: makes the private directory of a run (a new name, unless DIR is given) and sets TESSERA_RUN. Its path stays short: sockets
# live below it.
tessera_make_run()
{
	local base=${TMPDIR:-/tmp}
	[ ${#base} -le 40 ] && [ -w "$base" ] || base=/tmp
	if [ $# -gt 0 ]; then
		TESSERA_RUN=$1
		mkdir -m 0700 "$TESSERA_RUN" || tessera_die "could not create $TESSERA_RUN"
	else
		TESSERA_RUN=$(mktemp -d "$base/tessera.XXXXXX") || tessera_die "could not create a directory in $base"
	fi
	mkdir "$TESSERA_RUN/tmp" "$TESSERA_RUN/s" || tessera_die "could not write to $TESSERA_RUN"
	[ "$EUID" -ne 0 ] || chown -R "$tessera_user:" "$TESSERA_RUN"
}

# Copies the source tree (without .git and build products) to $1, owned by tessera_user: the tree itself may be unreadable to that user.
tessera_copy_tree()
{
	tar -C "$tessera_root" --exclude=./.git --exclude='*.o' --exclude='*.bc' --exclude='*.d' --exclude='*.so' --exclude=./test/unit/bin -cf - . |
		tessera_run_as sh -c 'mkdir -p "$1" && tar -C "$1" --no-same-owner -xf - && chmod -R u+rwX "$1"' sh "$1"
}

# A TCP port of the loopback interface that nobody listens on now, outside the range of client ports.
tessera_free_port()
{
	local port try
	for ((try = 0; try < 200; try++)); do
		port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
		if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
			echo "$port"
			return 0
		fi
	done
	return 1
}

# Settings that every server of a node gets here. fsync is off: what the tests kill are processes, not machines.
tessera_server_settings()
{
	cat <<'CONF'
shared_preload_libraries = 'tessera'
wal_level = logical
max_prepared_transactions = 50
max_replication_slots = 20
max_wal_senders = 20
max_worker_processes = 80
tessera.balancer_interval = 3600
tessera.move_progress_interval = 0
max_connections = 200
fsync = off
shared_buffers = 64MB
dynamic_shared_memory_type = mmap
log_line_prefix = '%m [%p] %q%a %d '
log_min_messages = warning
CONF
}

# tessera_server_create DIR [setting...]: initdb (trust, UTF8, locale C, superuser = tessera_user) with the settings above and those given.
tessera_server_create()
{
	local dir=$1
	shift
	tessera_run_as timeout 120 initdb -D "$dir" -A trust -N -E UTF8 --locale=C >"$TESSERA_RUN/initdb.log" 2>&1 </dev/null || {
		cat "$TESSERA_RUN/initdb.log" >&2
		return 1
	}
	{
		tessera_server_settings
		echo "listen_addresses = '127.0.0.1'"
		echo "unix_socket_directories = '$TESSERA_RUN/s'"
		[ $# -eq 0 ] || printf '%s\n' "$@"
	} | tessera_run_as tee -a "$dir/postgresql.conf" >/dev/null
}

# tessera_server_start DIR LOG [PORT]: starts the server of DIR and sets tessera_port. Without PORT takes a free one, and another if it was snatched.
tessera_server_start()
{
	local dir=$1 log=$2 wanted=${3:-} try
	for try in 1 2 3 4 5; do
		tessera_port=${wanted:-$(tessera_free_port)} || return 1
		if tessera_run_as timeout 90 pg_ctl -s -w -t 60 -D "$dir" -l "$log" -o "-p $tessera_port" start >/dev/null </dev/null; then
			return 0
		fi
		grep -q 'could not bind\|Address already in use' "$log" && [ -z "$wanted" ] || break
	done
	tail -n 20 "$log" >&2
	return 1
}

# tessera_server_stop DIR: fast, then immediate.
tessera_server_stop()
{
	tessera_run_as timeout 90 pg_ctl -s -w -t 60 -D "$1" -m fast stop </dev/null ||
		tessera_run_as timeout 30 pg_ctl -s -w -t 20 -D "$1" -m immediate stop </dev/null
}

# Process ids of this run, one on a line: working directory below TESSERA_RUN, or TESSERA_RUN in the environment.
tessera_processes()
{
	{
		find /proc -maxdepth 2 -path '/proc/[0-9]*/cwd' \( -lname "$TESSERA_RUN" -o -lname "$TESSERA_RUN/*" \) 2>/dev/null
		grep -lzxF "TESSERA_RUN=$TESSERA_RUN" /proc/[0-9]*/environ 2>/dev/null
	} | cut -d / -f 3 | grep -vx "$$" | sort -nu
}

# Ends what is left of this run: postmasters at once (SIGQUIT), the rest by SIGTERM, then all by SIGKILL; frees their System V segments.
tessera_sweep()
{
	local pid file try segment
	for pid in $(tessera_processes); do
		if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = postgres ]; then
			kill -QUIT "$pid" 2>/dev/null
		else
			kill -TERM "$pid" 2>/dev/null
		fi
	done
	for ((try = 0; try < 50; try++)); do
		[ -n "$(tessera_processes)" ] || break
		sleep 0.1
	done
	for pid in $(tessera_processes); do
		kill -KILL "$pid" 2>/dev/null
	done
	while read -r file; do
		segment=$(awk 'NR == 7 { print $2 }' "$file" 2>/dev/null)
		[ -z "$segment" ] || ipcrm -m "$segment" 2>/dev/null
	done < <(find "$TESSERA_RUN" -name postmaster.pid 2>/dev/null)
	return 0
}
