# common.sh: what test/demo/run and test/demo/stop share (sourced, after test/lib.sh).
#
# The demo lives in one private directory with a fixed name, so that demo-stop and the next run find it: data of the servers (s1, s2, s3), sockets (s), logs (log), the
# state file (lines "name=value"), and pgpass. Its processes are those whose working directory is below it or that have it as TESSERA_RUN; nothing else is ever ended.

# Sets demo_dir.
demo_find_dir()
{
	local base=${TMPDIR:-/tmp}
	# Sockets live below it: as in tessera_make_run, the path stays short.
	[ ${#base} -le 40 ] && [ -w "$base" ] || base=/tmp
	demo_dir=$base/tessera-demo-$(id -un)
}

# Ends the servers and clients of the former run, and removes its directory. Returns 1 if there was none.
demo_end()
{
	local name pid
	[ -e "$demo_dir" ] || return 1
	# Somebody else's directory by this name is not ours to act on.
	[ -d "$demo_dir" ] && [ ! -L "$demo_dir" ] && { [ -O "$demo_dir" ] || [ "$(stat -c %U "$demo_dir")" = "$tessera_user" ]; } ||
		tessera_die "$demo_dir exists, and is not a directory of the demo"
	TESSERA_RUN=$demo_dir
	for name in s1 s2 s3; do
		pid=$(head -n 1 "$demo_dir/$name/postmaster.pid" 2>/dev/null)
		# The process of a stale file may be anybody's by now.
		if [[ $pid =~ ^[0-9]+$ ]] && [ "$(readlink "/proc/$pid/cwd")" = "$demo_dir/$name" ]; then
			kill -INT "$pid"
		fi
	done
	for ((try = 0; try < 100; try++)); do
		[ -n "$(tessera_processes)" ] || break
		sleep 0.1
	done
	tessera_sweep
	rm -rf "$demo_dir"
}
