//! What a server may say, as bytes in the words of `conformance/cases.txt`: `<` is
//! awaited of the client, `>` is answered.

use super::*;
use crate::conformance::{Kept, Line, is_awaited, lines};

/// Up to the root as fid 0.
const BEGIN: &str = "
    < Tversion ~ 4:? s:9P2000
    > Rversion ~ 4:256 s:9P2000
    < Tattach 0 4:0 4:-1 s:u s:
    > Rattach 0 1:0x80 4:0 8:1
";

/// Plays the server to `user`.
fn with_script(script: &str, user: impl AsyncFnOnce(&Remote)) {
    let _dog = watch();
    let (_dir, listener, address) = socket();
    let lines = lines(&[BEGIN, script].concat());
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut kept = Kept::new();
            for (number, line) in lines {
                match line {
                    Line::Send(frame) => stream.write_all(&frame).unwrap(),
                    Line::Await(fields) => {
                        let asked = read_frame(&mut stream).unwrap_or_default();
                        let awaited = asked.len() > 4 && is_awaited(&asked, &fields, &mut kept);
                        assert!(awaited, "line {number}: {asked:02x?}, not {fields:02x?}");
                    }
                    Line::HangUp => return,
                }
            }
            // The client leaves first.
            while read_frame(&mut stream).is_some() {}
        });
        let remote = Remote::connect(&address, Remote::PATIENCE).unwrap();
        block_on(user(&remote));
    });
}

/// 300 bytes to and from an open file whose iounit says nothing: as a message holds them.
const WHOLE_MESSAGES: &str = "
    < Twrite 0 4:2 8:0 d:232*x
    > Rwrite 0 4:232
    < Tstat 0 4:2
    > Rstat 0 w:name=f,length=300
    < Twrite 0 4:2 8:232 d:68*x
    > Rwrite 0 4:68
    < Tread 0 4:2 8:0 4:232
    > Rread 0 d:232*x
    < Tread 0 4:2 8:232 4:68
    > Rread 0 d:68*x
";

async fn writes_and_reads(file: &RemoteFile) {
    let (data, mut into) = ([b'x'; 300], [0; 300]);
    assert_eq!(file.write_at(0, &data).await.unwrap(), 300);
    assert_eq!(file.read_at(0, &mut into).await.unwrap(), 300);
    assert_eq!(into, data);
}

#[test]
fn an_iounit_of_zero_says_nothing() {
    let open = "
        < Twalk 0 4:0 4:1 2:1 s:f
        > Rwalk 0 2:1 1:0 4:0 8:2
        < Twalk 0 4:1 4:2 2:0
        > Rwalk 0 2:0
        < Topen 0 4:2 1:2
        > Ropen 0 1:0 4:0 8:2 4:0
    ";
    with_script(&[open, WHOLE_MESSAGES].concat(), async |remote| {
        let root = remote.root("u", "").await.unwrap();
        let node = root.walk_to(&["f"]).await.unwrap();
        let file = node.open_file(READ_WRITE).await.unwrap();
        assert_eq!(file.piece_bytes(), 232);
        writes_and_reads(&file).await;
    });
}

#[test]
fn nor_of_a_file_that_is_made() {
    let create = "
        < Twalk 0 4:0 4:1 2:0
        > Rwalk 0 2:0
        < Twalk 0 4:1 4:2 2:0
        > Rwalk 0 2:0
        < Tcreate 0 4:2 s:f 4:0x1a4 1:2
        > Rcreate 0 1:0 4:0 8:2 4:0
    ";
    with_script(&[create, WHOLE_MESSAGES].concat(), async |remote| {
        let root = remote.root("u", "").await.unwrap();
        let node = root.walk_to(&[]).await.unwrap();
        let file = node.create_file("f", 0o644, READ_WRITE).await.unwrap();
        writes_and_reads(&file).await;
    });
}

#[test]
fn a_longer_iounit_than_a_message_is_cut_and_a_short_one_kept() {
    for (iounit, piece) in [("-1", 232), ("232", 232), ("231", 231), ("1", 1)] {
        let open = "
            < Twalk 0 4:0 4:1 2:0
            > Rwalk 0 2:0
            < Topen 0 4:1 1:0
        ";
        let open = format!("{open}> Ropen 0 1:0 4:0 8:2 4:{iounit}");
        let read = format!("< Tread 0 4:1 8:0 4:{piece}\n> Rread 0 d:");
        with_script(&[&open, "\n", &read].concat(), async |remote| {
            let root = remote.root("u", "").await.unwrap();
            let read = OpenMode { write: false, ..READ_WRITE };
            let file = root.open_file(read).await.unwrap();
            assert_eq!(file.piece_bytes(), piece);
            assert_eq!(file.read_at(0, &mut [0; 300]).await.unwrap(), 0);
        });
    }
}
