"""Reads valgrind's logs from standard input; prints the errors that happen in the extension's own code (the tree given), each kind once, and fails
if there is any. An error in a function of the server that the extension has called is listed in one line: a server that was not built for valgrind
has such errors of its own (padding that it writes to WAL). valgrind runs with --fullpath-after= so that a frame names its file with the path."""
import collections
import re
import sys

tree = sys.argv[1].rstrip("/")
FRAME = re.compile(r"\s+(?:at|by) 0x[0-9A-F]+: (.*)")
# "start (/tree/src/migration/donor.c:12)", or "start (in /path/tessera.so)" where lines are not known
OURS = re.compile(r"\((?:%s/)?(?:src|bgworkers)/[^:)]*\.c:\d+\)|\(in [^)]*/tessera\.so\)" % re.escape(tree))
# what the C library or valgrind does for its caller
LIBRARY = re.compile(r"\(in [^)]*/(?:libc|libm|ld-linux|vgpreload)[^)]*\)|vg_replace_strmem|/sysdeps/|/stdio-common/|/string/|/libio/|/nptl/")

direct = collections.OrderedDict()
below = collections.Counter()
total = 0


def take(lines):
    global total
    frames = [match.group(1) for match in map(FRAME.match, lines) if match]
    if not frames:
        return
    total += 1
    culprit = next((frame for frame in frames if not LIBRARY.search(frame)), frames[0])
    if OURS.search(culprit):
        direct.setdefault(lines[0] + culprit, []).append(lines)
    elif any(OURS.search(frame) for frame in frames):
        below[lines[0] + ": " + culprit + ", called by " + next(frame for frame in frames if OURS.search(frame))] += 1


block = []
for line in sys.stdin:
    line = re.sub(r"^==\d+== ?", "", line.rstrip("\n"))
    if line.strip():
        block.append(line)
    else:
        take(block)
        block = []
take(block)

print("# %d errors, %d of them in the extension's code, of %d kinds" % (total, sum(len(found) for found in direct.values()), len(direct)))
for what, count in below.most_common():
    print("# in the server, %d times: %s" % (count, what))
for found in direct.values():
    print("\n%d times:" % len(found))
    print("\n".join(found[0]))
sys.exit(1 if direct else 0)
