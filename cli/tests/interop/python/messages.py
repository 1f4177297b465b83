"""Makes the messages that lines of JSON describe, by python-9p, and writes their bytes.
What it reads back from those bytes must be what it made."""

import json
import sys

import py9p
from py9p import Dir, Qid


def qid(fields):
    return Qid(*fields)


def stat(fields):
    kernel_type, dev, file, *rest = fields
    return Dir(kernel_type, dev, qid(file), *rest)


def message(tag, kind, fields):
    for name, value in fields.items():
        if name in ("qid", "aqid"):
            fields[name] = qid(value)
        elif name == "wqid":
            fields[name] = tuple(qid(one) for one in value)
        elif name == "wname":
            fields[name] = tuple(value)
        elif name == "data":
            fields[name] = bytes.fromhex(value)
        elif name == "stat":
            fields[name] = stat(value)
    return getattr(py9p, kind)(tag=tag, **fields)


def main():
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        tag, kind, fields = json.loads(line)
        made = message(tag, kind, fields)
        wire = made.to_bytes()
        back = py9p.decode_message(wire)
        if back != made:
            sys.exit(f"{made} came back as {back}")
        out.write(wire)
    out.flush()


main()
