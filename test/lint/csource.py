"""What the lints share: the project's C files, a light reading of C text, and reporting in ok lines."""
import os
import re
import sys


class Report:
    """Prints 'ok - subject' or 'not ok - subject' with the findings as comments; remembers failure for the exit status."""

    def __init__(self):
        self.failed = False

    def check(self, subject, findings):
        if findings:
            self.failed = True
            print("not ok - " + subject)
            for finding in findings:
                print("#   " + finding)
        else:
            print("ok - " + subject)

    def exit(self):
        sys.exit(1 if self.failed else 0)


def root():
    return os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../.."))


GENERATED = ("src/control/calls.c", "src/control/calls.h")


def sources(top, suffixes=(".c", ".h")):
    """Paths, relative to top, of the extension's C files, sorted; without those that the build makes."""
    found = []
    for folder in ("src", "bgworkers"):
        for directory, _, names in os.walk(os.path.join(top, folder)):
            found += [os.path.relpath(os.path.join(directory, name), top) for name in names if name.endswith(suffixes)]
    found = [path for path in found if path not in GENERATED]
    return sorted(found)


def read(top, path):
    with open(os.path.join(top, path), encoding="utf-8") as file:
        return file.read()


_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def blank(text, strings=True):
    """The text with comments (and the inside of strings and character constants) blanked; positions and lines stay."""

    def replace(match):
        token = match.group(0)
        if token.startswith("/"):
            return re.sub(r"[^\n]", " ", token)
        if not strings:
            return token
        return token[0] + "_" * (len(token) - 2) + token[-1]

    return _TOKEN.sub(replace, text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def closing(text, start):
    """Position of the parenthesis that closes the one at start; text is blanked."""
    depth = 0
    for position in range(start, len(text)):
        if text[position] == "(":
            depth += 1
        elif text[position] == ")":
            depth -= 1
            if depth == 0:
                return position
    return len(text)


def calls(blanked, name):
    """(start, text position of the arguments, end) of each call of name."""
    for match in re.finditer(r"\b%s\s*\(" % name, blanked):
        yield match.start(), match.end(), closing(blanked, match.end() - 1)


def functions(blanked):
    """(name, first line, lines) of each function defined: PostgreSQL's style opens and closes a body in the first column."""
    lines = blanked.split("\n")
    start = None
    for number, line in enumerate(lines):
        if line.rstrip() == "{":
            start = number
        elif line.startswith("}") and start is not None:
            if line.rstrip() == "}":
                top = start
                while top > 0 and lines[top - 1].strip() and not re.match(r"[#}]|.*;\s*$", lines[top - 1]):
                    top -= 1
                head = " ".join(lines[top:start])
                names = re.findall(r"(\w+)\s*\(", head)
                if names:
                    yield names[0], top + 1, number - top + 1
            start = None
