"""What a Python program of python-9p does with a served directory, by several
clients at once. Arguments: socket's path, export, clients."""

import struct
import sys
import threading

from py9p import DMDIR, OREAD, ORDWR, OWRITE, Client, RemoteError, decode_dir

IO_BYTES = 8192 - 24


def pattern(n, length):
    """What file n holds."""
    return bytes((i * 7 + n + (i >> 8)) & 0xFF for i in range(length))


def untouched(name="", mode=0xFFFFFFFF):
    """A stat that changes only these. Its length is more than Dir takes."""
    text = lambda value: struct.pack("<H", len(value)) + value.encode()
    qid = struct.pack("<BIQ", 0xFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
    rest = struct.pack("<IIIQ", mode, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
    body = struct.pack("<HI", 0xFFFF, 0xFFFFFFFF) + qid + rest
    body += text(name) + text("") + text("") + text("")
    return struct.pack("<H", len(body)) + body


def entries(client, fid):
    """All of an open directory."""
    offset, names = 0, []
    while data := client.read(fid, IO_BYTES, offset):
        offset += len(data)
        while data:
            size = 2 + struct.unpack_from("<H", data)[0]
            names.append(decode_dir(data[:size]).name)
            data = data[size:]
    return names


def read_all(client, fid):
    data = bytearray()
    while part := client.read(fid, IO_BYTES, len(data)):
        data += part
    return bytes(data)


def work(client, export, n):
    """Files in a directory of its own."""
    root, here, file = 10, 11, 12
    client.attach(root, uname="glenda")
    assert client.walk(root, here, export)[0].type == 0x80
    client.create(here, f"python-{n}", int(DMDIR) | 0o755, int(OREAD))
    client.clunk(here)
    path = f"{export}/python-{n}"
    assert len(client.walk(root, file, path)) == 2
    client.create(file, "first", 0o644, int(ORDWR))
    data = pattern(n, 60_000 + 1000 * n)
    for at in range(0, len(data), IO_BYTES):
        part = data[at : at + IO_BYTES]
        assert client.write(file, part, at) == len(part)
    assert read_all(client, file) == data
    stat = client.stat(file)
    assert (stat.name, stat.length, stat.mode) == ("first", len(data), 0o644), stat
    client.wstat(file, untouched(name="renamed", mode=0o600))
    assert client.stat(file).name == "renamed"
    client.clunk(file)
    # A walk that gets a part of the way only leaves no fid.
    assert len(client.walk(root, file, path + "/first")) == 2
    client.walk(root, file, path)
    client.create(file, "gone", 0o644, int(OWRITE))
    client.remove(file)
    client.walk(root, file, path)
    client.open(file, int(OREAD))
    assert entries(client, file) == ["renamed"]
    client.clunk(file)
    try:
        client.walk(root, file, "nowhere")
        raise AssertionError("a walk to nowhere went well")
    except RemoteError as error:
        assert "does not exist" in str(error), error


def big(client, export):
    """The file that was there before."""
    root, file = 20, 21
    client.attach(root, uname="rob")
    client.walk(root, file, export + "/big")
    client.open(file, int(OREAD))
    assert read_all(client, file) == pattern(99, 3_000_000)
    client.clunk(file)


def one(path, export, n, failed):
    try:
        with Client.connect_unix(path) as client:
            client.negotiate()
            calls = [lambda: work(client, export, n)]
            # Two at once over one connection.
            calls += [lambda: big(client, export)] if n == 0 else []
            threads = [threading.Thread(target=watched, args=(call, failed)) for call in calls]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    except BaseException as error:
        failed.append(error)
        raise


def watched(call, failed):
    try:
        call()
    except BaseException as error:
        failed.append(error)
        raise


def main():
    path, export, clients = sys.argv[1], sys.argv[2], int(sys.argv[3])
    failed = []
    threads = [
        threading.Thread(target=one, args=(path, export, n, failed)) for n in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(1 if failed else 0)


main()
