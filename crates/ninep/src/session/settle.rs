//! How a call ends.

use super::fids::{File, Opened};
use super::refused::{Refused, ename, refuse};
use super::{CallId, Done, Ends, Session};
use crate::message::read_header;
use crate::{HEADER_BYTES, Reply};

impl<N: Clone, O: Clone> Session<N, O> {
    /// Takes the end of a call, and appends the reply to `out`: of a read all but
    /// the data. So many bytes of these the caller then appends; 0 for other
    /// calls. One that was called off has no reply.
    #[must_use = "what was read belongs to the reply"]
    pub fn done(
        &mut self,
        id: CallId,
        done: Result<Done<'_, N, O>, &str>,
        out: &mut Vec<u8>,
    ) -> usize {
        if self.calls.get(&id.tag).is_none_or(|call| call.serial != id.serial) {
            return 0;
        }
        let Some(call) = self.end(id.tag) else { return 0 };
        let start = out.len();
        let end = done.map_err(|error| Refused::Tree(ename(error).into()));
        let end = end.and_then(|done| self.reply(id, call.ends, done, out));
        if let Some(fid) = call.ends.fid() {
            self.fids.release(fid, id.serial);
        }
        end.unwrap_or_else(|refused| {
            out.truncate(start);
            refuse(id.tag, &refused, out);
            0
        })
    }

    fn reply(
        &mut self,
        id: CallId,
        ends: Ends,
        done: Done<'_, N, O>,
        out: &mut Vec<u8>,
    ) -> Result<usize, Refused> {
        let reply = match (ends, done) {
            (Ends::Read { count }, Done::Read(read)) if read <= count => {
                read_header(id.tag, read, out);
                return Ok(read as usize);
            }
            (ends, done) => self.settle(id.serial, ends, done)?,
        };
        // All others are bounded by what was asked for.
        if let (Reply::Stat { stat }, msize) = (&reply, self.message_bytes())
            && HEADER_BYTES + 2 + stat.encoded_bytes() > msize
        {
            return Err(Refused::LongReply(msize));
        }
        reply.encode(id.tag, out).map_err(Refused::Reply)?;
        Ok(0)
    }

    /// What the call was for comes to pass, if its fid is still there.
    fn settle<'d>(
        &mut self,
        serial: u64,
        ends: Ends,
        done: Done<'d, N, O>,
    ) -> Result<Reply<'d>, Refused> {
        let iounit = self.io_bytes();
        let opened = |open, mode| Some(Opened { open, mode, end: 0, entries: 0 });
        Ok(match (ends, done) {
            (Ends::Attach { fid }, Done::Attach(node, qid)) => {
                *self.fids.owned(fid, serial)? = Some(File { node, qid, opened: None });
                Reply::Attach { qid }
            }
            (Ends::Walk { newfid, names }, Done::Walk(qids, node)) => {
                if qids.len() == names {
                    let (Some(node), Some(qid)) = (node, qids.last().copied()) else {
                        return Err(Refused::Mismatch);
                    };
                    *self.fids.owned(newfid, serial)? = Some(File { node, qid, opened: None });
                } else if qids.is_empty() || qids.len() > names {
                    return Err(Refused::Mismatch);
                }
                Reply::Walk { qids }
            }
            (Ends::Open { fid, mode }, Done::Open(open, qid)) => {
                let slot = self.fids.owned(fid, serial)?;
                let file = slot.as_mut().ok_or(Refused::UnknownFid(fid))?;
                (file.opened, file.qid) = (opened(open, mode), qid);
                Reply::Open { qid, iounit }
            }
            (Ends::Create { fid, mode }, Done::Create(node, open, qid)) => {
                let file = File { node, qid, opened: opened(open, mode) };
                *self.fids.owned(fid, serial)? = Some(file);
                Reply::Create { qid, iounit }
            }
            (Ends::Entries { fid, offset, from, count }, Done::Entries(data, entries)) => {
                if data.len() > count as usize {
                    return Err(Refused::Mismatch);
                }
                let file = self.fids.owned(fid, serial)?.as_mut();
                if let Some(opened) = file.and_then(|file| file.opened.as_mut()) {
                    opened.end = offset + data.len() as u64;
                    opened.entries = from + entries;
                }
                Reply::Read { data }
            }
            (Ends::Write { count }, Done::Write(written)) if written <= count => {
                Reply::Write { count: written }
            }
            (Ends::Stat, Done::Stat(stat)) => Reply::Stat { stat },
            (Ends::Clunk, Done::Changed) => Reply::Clunk,
            (Ends::Remove, Done::Changed) => Reply::Remove,
            (Ends::Wstat, Done::Changed) => Reply::Wstat,
            _ => return Err(Refused::Mismatch),
        })
    }
}
