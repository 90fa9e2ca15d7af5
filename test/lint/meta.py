#!/usr/bin/env python3
"""META.json: what PGXN's Meta Spec v1 requires is there, and version and files agree with Makefile and control file."""
import json
import os
import re

from csource import Report, read, root

SEMVER = re.compile(r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[A-Za-z][0-9A-Za-z-]*)?$")
REQUIRED = ("name", "version", "abstract", "maintainer", "license", "provides", "meta-spec")


def required_findings(meta):
    findings = ["%s is missing" % key for key in REQUIRED if not meta.get(key)]
    if not re.match(r"^[^\s/\\\x00-\x1f]{2,}$", meta.get("name", "")):
        findings.append("name must have at least two characters, no space or slash")
    if not SEMVER.match(meta.get("version", "")):
        findings.append("version is not semantic")
    if meta.get("meta-spec", {}).get("version") != "1.0.0":
        findings.append("meta-spec.version must be 1.0.0")
    if meta.get("release_status", "stable") not in ("stable", "testing", "unstable"):
        findings.append("release_status is unknown")
    for name, provided in meta.get("provides", {}).items():
        findings += ["provides.%s.%s is missing" % (name, key) for key in ("file", "version") if not provided.get(key)]
        if not SEMVER.match(provided.get("version", "")):
            findings.append("provides.%s.version is not semantic" % name)
    for phase, relations in meta.get("prereqs", {}).items():
        if phase not in ("configure", "build", "test", "runtime", "develop"):
            findings.append("prereqs.%s is no phase" % phase)
        findings += ["prereqs.%s.%s is no relation" % (phase, key) for key in relations
                     if key not in ("requires", "recommends", "suggests", "conflicts")]
    return findings


def agreement_findings(top, meta):
    version = meta.get("version")
    makefile = re.search(r"^TESSERA_VERSION\s*=\s*(\S+)", read(top, "Makefile"), re.M)
    control = re.search(r"^default_version\s*=\s*'([^']*)'", read(top, "extension/tessera.control"), re.M)
    findings = []
    for name, found in (("Makefile", makefile), ("extension/tessera.control", control)):
        if not found or found.group(1) != version:
            findings.append("%s says %s, META.json %s" % (name, found and found.group(1), version))
    provided = meta.get("provides", {}).get("tessera", {})
    if provided.get("version") != version:
        findings.append("provides.tessera.version is %s" % provided.get("version"))
    if provided.get("file") != "extension/tessera--%s.sql" % version:
        findings.append("provides.tessera.file is %s" % provided.get("file"))
    if provided.get("docfile") and not os.path.isfile(os.path.join(top, provided["docfile"])):
        findings.append("%s does not exist" % provided["docfile"])
    return findings


def main():
    top = root()
    report = Report()
    try:
        meta = json.loads(read(top, "META.json"))
    except ValueError as error:
        report.check("META.json is JSON", [str(error)])
        report.exit()
    report.check("META.json has what PGXN requires", required_findings(meta))
    report.check("versions agree", agreement_findings(top, meta))
    report.exit()


main()
