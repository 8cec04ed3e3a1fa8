//! `run` and `map` directives: how a function is called and what must come of it.

/// An argument of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CallArg {
    /// A number.
    Number(u64),
    /// The address of memory with these bytes.
    Mem(Vec<u8>),
    /// The address of the context of a packet with these bytes.
    Packet(Vec<u8>),
}

/// An entry of a map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapEntrySpec {
    /// Number of the map.
    pub map: u32,
    /// The key.
    pub key: Vec<u8>,
    /// The value; `None` where there is to be no such entry.
    pub value: Option<Vec<u8>>,
}

/// Condition on the state after a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RunPostcondition {
    /// The next `mem` argument, in order, holds these bytes.
    Mem(Vec<u8>),
    /// The packet is this.
    Packet(Vec<u8>),
    /// A map holds this, or does not.
    Map(MapEntrySpec),
}

/// One `run` directive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunDirective {
    /// The line, from 1.
    pub line: usize,
    /// The number of the function.
    pub func: u32,
    /// Its arguments.
    pub args: Vec<CallArg>,
    /// Its result; `None` for a fault.
    pub result: Option<u64>,
    /// Further conditions on the state.
    pub after: Vec<RunPostcondition>,
}

/// Reads what follows `run:`, as in `fn0(1, mem="00ff") == 0x2a, mem="01ff", map0["00"]=none`.
pub(crate) fn parse_run(text: &str, line: usize) -> Result<RunDirective, String> {
    let mut p = DirectiveCursor { rest: text.trim() };
    let func = p.entity("fn")?;
    p.expect("(")?;
    let mut args = Vec::new();
    while !p.eat(")") {
        if !args.is_empty() {
            p.expect(",")?;
        }
        args.push(p.arg()?);
    }
    p.expect("==")?;
    let result = if p.eat("fault") { None } else { Some(p.number()?) };
    let mut after = Vec::new();
    while p.eat(",") {
        after.push(p.after()?);
    }
    match p.rest {
        "" => Ok(RunDirective { line, func, args, result, after }),
        rest => Err(format!("expected the end of the line, found `{rest}`")),
    }
}

/// Reads what follows `map:`, as in `map0["00000001"]="0a"`.
pub(crate) fn parse_entry(text: &str) -> Result<MapEntrySpec, String> {
    let mut p = DirectiveCursor { rest: text.trim() };
    let entry = p.entry()?;
    match (p.rest, &entry.value) {
        ("", Some(_)) => Ok(entry),
        _ => Err("expected mapN[\"key\"]=\"value\"".to_string()),
    }
}

struct DirectiveCursor<'a> {
    rest: &'a str,
}

impl<'a> DirectiveCursor<'a> {
    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.eat(token) { Ok(()) } else { Err(format!("expected `{token}` at `{}`", self.rest)) }
    }

    fn word(&mut self) -> &'a str {
        let len = self.rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(len);
        self.rest = rest.trim_start();
        word
    }

    fn entity(&mut self, prefix: &str) -> Result<u32, String> {
        let word = self.word();
        let number = word.strip_prefix(prefix).and_then(|n| n.parse().ok());
        number.ok_or_else(|| format!("expected {prefix} and a number, found `{word}`"))
    }

    fn number(&mut self) -> Result<u64, String> {
        let negative = self.eat("-");
        let word = self.word();
        let number = match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => word.parse(),
        };
        let number = number.map_err(|_| format!("expected a number, found `{word}`"))?;
        Ok(if negative { number.wrapping_neg() } else { number })
    }

    fn bytes(&mut self) -> Result<Vec<u8>, String> {
        self.expect("\"")?;
        let (hex, rest) = self.rest.split_once('"').ok_or("expected a closing quote")?;
        self.rest = rest.trim_start();
        let digits: Option<Vec<u8>> =
            hex.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).map(|d| d as u8)).collect();
        match digits {
            Some(digits) if digits.len() % 2 == 0 => Ok(digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()),
            _ => Err(format!("expected bytes in hexadecimal, found `{hex}`")),
        }
    }

    fn arg(&mut self) -> Result<CallArg, String> {
        if self.eat("mem=") {
            return self.bytes().map(CallArg::Mem);
        }
        if self.eat("packet=") {
            return self.bytes().map(CallArg::Packet);
        }
        self.number().map(CallArg::Number)
    }

    fn after(&mut self) -> Result<RunPostcondition, String> {
        if self.eat("mem=") {
            return self.bytes().map(RunPostcondition::Mem);
        }
        if self.eat("packet=") {
            return self.bytes().map(RunPostcondition::Packet);
        }
        self.entry().map(RunPostcondition::Map)
    }

    fn entry(&mut self) -> Result<MapEntrySpec, String> {
        let map = self.entity("map")?;
        self.expect("[")?;
        let key = self.bytes()?;
        self.expect("]")?;
        self.expect("=")?;
        let value = if self.eat("none") { None } else { Some(self.bytes()?) };
        Ok(MapEntrySpec { map, key, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_arguments_result_and_state() {
        let run = parse_run(r#"fn2(-1, mem="00 ff") == 0x2a, mem="01ff", map0["00"]=none"#, 3).unwrap();
        let entry = MapEntrySpec { map: 0, key: vec![0], value: None };
        assert_eq!(
            run,
            RunDirective {
                line: 3,
                func: 2,
                args: vec![CallArg::Number(u64::MAX), CallArg::Mem(vec![0, 255])],
                result: Some(42),
                after: vec![RunPostcondition::Mem(vec![1, 255]), RunPostcondition::Map(entry)],
            }
        );
        assert_eq!(parse_run("fn0() == fault", 1).unwrap().result, None);
    }

    #[test]
    fn malformed_runs_say_what_was_expected() {
        for (text, expect) in [
            ("f(1) == 2", "expected fn and a number, found `f`"),
            ("fn0(1 == 2", "expected `,` at `== 2`"),
            ("fn0(mem=\"0\") == 2", "expected bytes in hexadecimal, found `0`"),
            ("fn0() == 2 3", "expected the end of the line, found `3`"),
        ] {
            assert_eq!(parse_run(text, 1).unwrap_err(), expect);
        }
    }
}
