//! The daemon's answers at its socket.

use std::io::{self, Write as _};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use millstream_service::clients::{self, ClientConnection, ClientLine};

use super::Daemon;
use super::protocol::{DaemonReply, LONGEST, Question, ReplyBody, SCHEMA};

/// Answers questions, for as long as the process lives.
pub(super) fn serve(listener: &UnixListener, daemon: &Arc<Daemon>) {
    let daemon = Arc::clone(daemon);
    clients::serve(listener, refusal().as_bytes(), move |client| converse(client, &daemon));
}

fn converse(client: &mut ClientConnection, daemon: &Arc<Daemon>) -> io::Result<()> {
    while let Some(line) = client.read_line(LONGEST)? {
        let answer = match line {
            ClientLine::Whole(line) => {
                understood(&line).map_or_else(|refused| refused, |question| daemon.answer(question.command))
            }
            ClientLine::TooLong => {
                say(client, refused("the question is too long".into()))?;
                return Ok(());
            }
        };
        let said = say(client, answer);
        daemon.answered();
        said?;
    }
    Ok(())
}

/// Answer to a client for whom there is no place.
fn refusal() -> String {
    let refused = ReplyBody::Refused {
        message: "too many are connected".into(),
        help: Some("try again in a moment".into()),
    };
    serde_json::to_string(&DaemonReply { schema: SCHEMA, answer: refused }).unwrap_or_default() + "\n"
}

fn understood(line: &[u8]) -> Result<Question, ReplyBody> {
    let question: Question =
        serde_json::from_slice(line).map_err(|e| refused(format!("the question is not understood: {e}")))?;
    if question.schema == SCHEMA {
        return Ok(question);
    }
    Err(refused(format!("the question has schema {}; this daemon has schema {SCHEMA}", question.schema)))
}

fn refused(message: String) -> ReplyBody {
    let example = format!("{{\"schema\":{SCHEMA},\"command\":\"status\"}}");
    let help = format!("send one JSON object per line, as {example}; docs/daemon.md lists the commands");
    ReplyBody::Refused { message, help: Some(help) }
}

fn say(client: &mut ClientConnection, answer: ReplyBody) -> io::Result<()> {
    let mut line = serde_json::to_vec(&DaemonReply { schema: SCHEMA, answer })?;
    line.push(b'\n');
    client.write_all(&line)
}
