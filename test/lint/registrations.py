#!/usr/bin/env python3
"""Hooks and callbacks: whatever the extension registers with the server, it registers in an init function that the table in init.c names once;
what is done at the end of transactions, and of a process, is in init.c's other tables."""
import re

from csource import Report, blank, line_of, read, root, sources

# What registers something once, for all processes.
ONCE = re.compile(r"\b(RegisterResourceReleaseCallback|CacheRegister\w+Callback|"
                  r"RegisterCustomScanMethods|RegisterBackgroundWorker|RegisterExtensibleNodeMethods|RegisterCustomRmgr|"
                  r"DefineCustom\w+Variable|tessera_shmem_register)\s*\((?!const )|"
                  r"(?<![\w.>])(?!previous_)(\w+_hook)\s*=(?!=)|\b(ProcessUtility_hook)\s*=(?!=)")
AT_EXIT = re.compile(r"\b(before_shmem_exit|on_shmem_exit|on_proc_exit)\s*\(")
INIT = re.compile(r"^(tessera_\w+_(?:init|install))\(void\)\n\{\n(.*?)^\}", re.M | re.S)
EXIT_STEP = "src/common/process_exit.c"
AT_END = re.compile(r"\b(RegisterXactCallback|RegisterSubXactCallback)\b")
TRANSACTION_STEP = "src/common/transaction_steps.c"
STEPS = re.compile(r"^static const Tessera(?:T|Subt)ransactionStep (\w+)\[\] = \{\n(.*?)^\};", re.M | re.S)
# Tables of which the later has the order of the earlier, but for steps that only one of them has.
SAME_ORDER = (("before_commit", "before_prepare"), ("at_commit", "at_prepare"), ("at_commit", "at_abort"))


def module(step):
    """What the steps of a module for several events have in common."""
    return re.sub(r"_(?:before_(?:commit|prepare|end)|ended|committed|prepared|aborted|forget)$", "", step)


def table_findings(text):
    """Tables of steps at the end of (sub)transactions that are not as they should be."""
    tables = {name: re.findall(r"\w+", body) for name, body in STEPS.findall(text)}
    installed = re.search(r"\btransaction_steps = \{(.*?)^\};", text, re.M | re.S)
    named = re.findall(r"= (\w+),", installed.group(1)) if installed else []
    found = [] if tables else ["there are no tables"]
    for name, steps in tables.items():
        found += [] if name in named else ["%s is installed for no event" % name]
        found += [] if steps[-1:] == ["NULL"] else ["%s does not end with NULL" % name]
        found += ["%s is twice in %s" % (step, name) for step in sorted(set(steps)) if steps.count(step) > 1]
    for first, second in SAME_ORDER:
        modules = [[module(step) for step in tables.get(name, [])] for name in (first, second)]
        both = [[name for name in order if name in modules[0] and name in modules[1]] for order in modules]
        found += ["%s has another order than %s" % (second, first)] if both[0] != both[1] else []
    return ["src/init.c: " + text for text in found]


def main():
    top = root()
    report = Report()
    root_text = blank(read(top, "src/init.c"), strings=False)
    table = re.search(r"\bregistrations\[\] = \{(.*?)^\};", root_text, re.M | re.S)
    named = re.findall(r"\{\"[^\"]*\", (\w+)\}", table.group(1)) if table else []
    steps = re.search(r"\bexit_steps\[\] = \{(.*?)^\};", root_text, re.M | re.S)
    listed_steps = re.findall(r"\{(tessera_\w+)", steps.group(1)) if steps else []

    stray, exits, ends, asked, inits = [], [], [], [], {}
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
        ends += ["%s:%d: %s: make it a step of init.c's tables" % (path, line_of(text, match.start()), match.group(1))
                 for match in AT_END.finditer(text) if path != TRANSACTION_STEP]
        asked += re.findall(r"\btessera_at_exit\((tessera_\w+)\)", text)
    report.check("hooks and callbacks are registered in init functions", stray)
    report.check("init.c's table names every init function once",
                 ["%s: %s is not in the table" % (path, name) for name, path in sorted(inits.items()) if name not in named] +
                 ["src/init.c: %s is there twice" % name for name in sorted(set(named)) if named.count(name) > 1] +
                 ([] if named else ["src/init.c: there is no table"]))
    report.check("callbacks at the end of transactions are registered in one place", ends)
    report.check("steps at the end of transactions are in tables of one order", table_findings(root_text))
    report.check("exit callbacks are registered in one place", exits)
    report.check("exit steps are in init.c's table, and asked for",
                 ["%s is not in the table" % name for name in sorted(set(asked) - set(listed_steps))] +
                 ["%s is never asked for" % name for name in sorted(set(listed_steps) - set(asked))])
    report.exit()


main()
