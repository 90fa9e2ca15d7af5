"""Reads valgrind's logs from standard input; prints the errors that have a frame in the extension's sources (the tree given), each kind once, and fails if there
is any. valgrind runs with --fullpath-after= so that a frame names its file with the path."""
import re
import sys

tree = sys.argv[1].rstrip("/")
# "==123==    at 0x1234: function (src/migration/donor.c:12)"; objects without lines say "(in /path/tessera.so)"
OURS = re.compile(r"\((?:%s/|\./)?(?:src|bgworkers)/(?:%s)/?[^:)]*\.c:\d+\)|\(in [^)]*/tessera\.so\)" % (
    re.escape(tree), "admin|balance|bgworkers|catalog|clock|codec|common|ddl|executor|migration|planner|routing|session|transaction|transport|init|worker|migration_cloner|launcher|\\w+"))
SERVER = re.compile(r"/src/backend/|/build/")

all_errors = 0
ours = {}
block = []


def take(lines):
    global all_errors
    frames = [line for line in lines if re.match(r"\s+(at|by) 0x", line)]
    if not frames:
        return
    all_errors += 1
    top = [frame for frame in frames if OURS.search(frame) and not SERVER.search(frame)]
    if top:
        key = lines[0] + re.sub(r"0x[0-9A-F]+: ", "", top[0])
        ours.setdefault(key, []).append(lines)


for line in sys.stdin:
    line = re.sub(r"^==\d+== ?", "", line.rstrip("\n"))
    if line.strip():
        block.append(line)
    else:
        take(block)
        block = []
take(block)

print("# %d errors, %d of them with a frame of the extension, of %d kinds" % (all_errors, sum(len(v) for v in ours.values()), len(ours)))
for lines in ours.values():
    print("\n%d times:" % len(lines))
    print("\n".join(lines[0]))
sys.exit(1 if ours else 0)
