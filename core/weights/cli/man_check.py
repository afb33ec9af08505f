"""The manual pages and docs/weights.md against the program, so that none drifts from it.

Usage: man_check.py TOOL_HELP PAGE1 PAGE7 HEADER JSON_MEMBERS WEIGHTS_MD
"""

import re
import sys

HELP, PAGE1, PAGE7, HEADER, MEMBERS, WEIGHTS = (open(path, encoding="utf-8").read() for path in sys.argv[1:7])
wrong = []


def expect(holds, text):
    if not holds:
        wrong.append(text)


def same(what, have, wanted):
    expect(not wanted - have, "%s lacks %s" % (what, sorted(wanted - have)))
    expect(not have - wanted, "%s has %s, which the program lacks" % (what, sorted(have - wanted)))


def plain(roff):
    """Without macros, font changes and escapes."""
    text = re.sub(r"\\f[BIRP]", "", roff).replace("\\-", "-").replace("\\(ti", "~").replace("\\(dq", '"')
    return re.sub(r"^\.(?:B|I|BR|BI|IR|RI|RB) ", "", text, flags=re.M)


def section(page, title):
    return re.search(r"^\.SH %s\n(.*?)(?=^\.SH |\Z)" % title, page, re.M | re.S).group(1)


def entries(text):
    """{tag: text} of the .TP paragraphs with a bold tag."""
    return {tag: " ".join(body.split()) for tag, body in re.findall(r"^\.TP\n\.B (\S+)\n(.*?)(?=^\.|\Z)", text, re.M | re.S)}


# --- options and commands, both ways ---
OPTION = r"(?<![\w-])--[a-z]+(?:-[a-z]+)*"
options = set(re.findall(OPTION, HELP)) | {"--help"}
expect(len(options) > 15, "the tool's help has no options")
same("the synopsis and options of hostlane-weights(1)", set(re.findall(OPTION, plain(PAGE1))), options)
commands = set(re.findall(r"^  ([a-z]+) ", HELP, re.M))
described = set(re.findall(r"^\.(?:BI?|BR) \"?([a-z]+)\b", section(PAGE1, "COMMANDS"), re.M))
expect(not commands - described, "hostlane-weights(1) does not describe %s" % sorted(commands - described))

# --- exit statuses ---
statuses = dict(re.findall(r"(\d) ([a-z ]+)", re.search(r"Exit status: (.*?)\.", HELP).group(1)))
expect(set(statuses) == {"0", "1", "2"}, "the tool's help has other exit statuses: %s" % statuses)
documented = set(re.findall(r"^\.TP\n\.B ([0-9+n]+)$", section(PAGE1, "EXIT STATUS"), re.M))
same("EXIT STATUS of hostlane-weights(1)", documented - {"128+n"}, set(statuses))

# --- the failure codes: the header, hostlane-weights(7) and docs/weights.md ---
block = HEADER[HEADER.index("#define HL_WEIGHT_CODE_LIST"):HEADER.index("typedef enum hl_weight_stage")]
remedies = {name: "".join(re.findall(r'"([^"]*)"', text)) for name, text in
            re.findall(r'X\([A-Z_0-9]+,\s*"(\w+)",\s*\w+,\s*((?:"[^"]*"\s*)+)\)', block.replace("\\\n", ""))}
expect(len(remedies) > 30, "the header's list of codes is not where it was")
explained = entries(section(PAGE7, "FAILURES"))
same("FAILURES of hostlane-weights(7)", set(explained), set(remedies))
rows = {row[0]: row for row in re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", WEIGHTS, re.M)}
live = {code for code, remedy in remedies.items() if remedy != "reserved"}
same("the table of docs/weights.md", set(rows), live)
for code, remedy in remedies.items():
    words = "reserved: nothing raises it" if remedy == "reserved" else remedy.replace("`", "")
    said = plain(explained.get(code, ""))
    expect(said.lower() == words.lower() + ".", "hostlane-weights(7): %s: \"%s\", not \"%s.\"" % (code, said, words))
    if code in rows:
        expect(rows[code][3] == remedy, "docs/weights.md: %s: \"%s\", not \"%s\"" % (code, rows[code][3], remedy))
    else:
        expect("`%s`" % code in WEIGHTS, "docs/weights.md does not name the reserved code %s" % code)
block = HEADER[HEADER.index("#define HL_WEIGHT_STAGE_LIST"):HEADER.index("#define HL_WEIGHT_CODE_LIST")]
stages = re.findall(r'X\([A-Z_]+,\s*"(\w+)"\)', block)
expect(len(stages) == 10, "the header's list of stages is not where it was")
for stage in stages:
    expect(re.search(r"\b%s\b" % stage, section(PAGE7, "FAILURES")), "hostlane-weights(7) does not name the stage %s" % stage)
for row in rows.values():
    for stage in re.sub(r";.*", "", row[1]).split(","):
        expect(stage.strip() in stages, "docs/weights.md: %s has the stage %s, which is none" % (row[0], stage.strip()))

# --- the members of the tool's JSON ---
json = plain(section(PAGE1, "JSON"))
for line in MEMBERS.splitlines():
    name, *members = line.split()
    if name not in ("#", "manifest"):
        for member in members:
            expect(re.search(r"\b%s\b" % member, json), "hostlane-weights(1): JSON: %s of %s" % (member, name))

# --- functions that hostlane-weights(7) names exist ---
named = set(re.findall(r"\b(hl_weight_\w+) ?\"?\(\)", plain(PAGE7)))
expect(len(named) > 15, "hostlane-weights(7) names no functions")
for function in named:
    expect(re.search(r"\b%s\(" % function, HEADER), "hostlane-weights(7) names %s(), which the header lacks" % function)

print("\n".join(wrong) or "%d options, %d codes, %d stages, %d functions agree" % (len(options), len(remedies), len(stages), len(named)))
sys.exit(bool(wrong))
