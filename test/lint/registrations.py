#!/usr/bin/env python3
"""Hooks and callbacks: whatever the extension registers with the server, it registers in an init function that the table in init.c names once;
what a process does at its exit is in init.c's other table."""
import re

from csource import Report, blank, line_of, read, root, sources

# What registers something once, for all processes.
ONCE = re.compile(r"\b(RegisterXactCallback|RegisterSubXactCallback|RegisterResourceReleaseCallback|CacheRegister\w+Callback|"
                  r"RegisterCustomScanMethods|RegisterBackgroundWorker|RegisterExtensibleNodeMethods|RegisterCustomRmgr|"
                  r"DefineCustom\w+Variable|tessera_shmem_register)\s*\((?!const )|"
                  r"(?<![\w.>])(?!previous_)(\w+_hook)\s*=(?!=)|\b(ProcessUtility_hook)\s*=(?!=)")
AT_EXIT = re.compile(r"\b(before_shmem_exit|on_shmem_exit|on_proc_exit)\s*\(")
INIT = re.compile(r"^(tessera_\w+_(?:init|install))\(void\)\n\{\n(.*?)^\}", re.M | re.S)
EXIT_STEP = "src/common/process_exit.c"


def main():
    top = root()
    report = Report()
    root_text = blank(read(top, "src/init.c"), strings=False)
    table = re.search(r"\bregistrations\[\] = \{(.*?)^\};", root_text, re.M | re.S)
    named = re.findall(r"\{\"[^\"]*\", (\w+)\}", table.group(1)) if table else []
    steps = re.search(r"\bexit_steps\[\] = \{(.*?)^\};", root_text, re.M | re.S)
    listed_steps = re.findall(r"\{(tessera_\w+)", steps.group(1)) if steps else []

    stray, exits, asked, inits = [], [], [], {}
    for path in sources(top, (".c",)):
        text = blank(read(top, path))
        spans = []
        for match in INIT.finditer(text):
            if ONCE.search(match.group(2)):
                inits[match.group(1)] = path
                spans.append(match.span())
        for match in ONCE.finditer(text):
            if not any(start <= match.start() < end for start, end in spans):
                stray.append("%s:%d: %s outside of an init function" % (path, line_of(text, match.start()), match.group(0).strip(" (=")))
        exits += ["%s:%d: %s: use tessera_at_exit" % (path, line_of(text, match.start()), match.group(1))
                  for match in AT_EXIT.finditer(text) if path != EXIT_STEP]
        asked += re.findall(r"\btessera_at_exit\((tessera_\w+)\)", text)
    report.check("hooks and callbacks are registered in init functions", stray)
    report.check("init.c's table names every init function once",
                 ["%s: %s is not in the table" % (path, name) for name, path in sorted(inits.items()) if name not in named] +
                 ["src/init.c: %s is there twice" % name for name in sorted(set(named)) if named.count(name) > 1] +
                 ([] if named else ["src/init.c: there is no table"]))
    report.check("exit callbacks are registered in one place", exits)
    report.check("exit steps are in init.c's table, and asked for",
                 ["%s is not in the table" % name for name in sorted(set(asked) - set(listed_steps))] +
                 ["%s is never asked for" % name for name in sorted(set(listed_steps) - set(asked))])
    report.exit()


main()
