//! Code blocks of pages.

/// Marker in front of a block that is not run, with the reason.
const NOT_RUN: &str = "<!-- not run: ";
/// Marker in front of a block that is run, with the name of the file that gets the block before it.
const FILE: &str = "<!-- file ";
/// First words of lines by which a block without a language is taken for shell commands.
const PROGRAMS: [&str; 13] = [
    "millstream",
    "click",
    "click-flatten",
    "make",
    "cargo",
    "clang-19",
    "bpftool",
    "ip",
    "mount",
    "scripts/",
    "bench/",
    "./",
    "apt-get",
];

/// Code of a page.
#[derive(Debug)]
pub(crate) struct CodeBlock {
    /// Line of its first line in the page, from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
    /// Language of a fence; empty for indented blocks.
    language: String,
    /// The last paragraph before it, if that is a marker.
    marker: Option<String>,
}

impl CodeBlock {
    /// Returns true if it has shell commands.
    pub(crate) fn is_shell(&self) -> bool {
        match self.language.as_str() {
            "sh" => true,
            "" => self.text.lines().any(|line| {
                let word = line.split_whitespace().next().unwrap_or_default();
                PROGRAMS.iter().any(|p| word == *p || (p.ends_with('/') && word.starts_with(p)))
            }),
            _ => false,
        }
    }

    /// Reason why it is not run.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.marker.as_deref()?.strip_prefix(NOT_RUN)?.strip_suffix(" -->")
    }

    /// Name of the file for the block before this one.
    pub(crate) fn file(&self) -> Option<&str> {
        self.marker.as_deref()?.strip_prefix(FILE)?.strip_suffix(" -->")
    }

    /// Command lines of `millstream`, as words, without what the shell does with their output.
    pub(crate) fn command_lines(&self) -> Vec<Vec<String>> {
        let text = self.text.replace("\\\n", " ");
        let commands = text.lines().flat_map(split_commands);
        commands.filter(|words| words.first().is_some_and(|w| w == "millstream")).collect()
    }
}

/// The commands of a line, as words; quotes group, and a comment, a pipe or a redirection ends a command.
fn split_commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let (mut quote, mut is_cut) = (None, false);
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (Some(end), _) if c == end => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | '>' | '&' | ';') => {
                words.extend(word.take());
                is_cut = c == '>';
                if !is_cut && !words.is_empty() {
                    commands.push(std::mem::take(&mut words));
                }
            }
            (None, ' ') => match word.take() {
                // The file of a redirection.
                Some(_) if is_cut => is_cut = false,
                word => words.extend(word),
            },
            (None, _) => word.get_or_insert_default().push(c),
        }
    }
    if !words.is_empty() {
        commands.push(words);
    }
    commands
}

/// All code blocks of a page.
pub(crate) fn code_blocks(page: &str) -> Vec<CodeBlock> {
    let lines: Vec<&str> = page.lines().collect();
    let (mut blocks, mut at) = (Vec::new(), 0);
    let mut marker: Option<String> = None;
    while at < lines.len() {
        let line = lines[at];
        if let Some(language) = line.strip_prefix("```") {
            let end = (at + 1..lines.len()).find(|n| lines[*n].starts_with("```")).unwrap_or(lines.len());
            blocks.push(CodeBlock {
                line: at + 2,
                text: lines[at + 1..end].join("\n"),
                language: language.to_owned(),
                marker: marker.take(),
            });
            at = end + 1;
        } else if line.starts_with("    ")
            && (at == 0 || lines[at - 1].trim().is_empty() || marker.is_some())
            && !in_list(&lines[..at])
        {
            let is_code = |n: &usize| lines[*n].starts_with("    ") || lines[*n].trim().is_empty();
            let end = (at..lines.len()).take_while(is_code).last().map_or(at, |n| n + 1);
            let text = lines[at..end].iter().map(|l| l.strip_prefix("    ").unwrap_or(""));
            blocks.push(CodeBlock {
                line: at + 1,
                text: text.collect::<Vec<_>>().join("\n"),
                language: String::new(),
                marker: marker.take(),
            });
            at = end;
        } else {
            if line.starts_with("<!--") {
                marker = Some(line.to_owned());
            } else if !line.trim().is_empty() {
                marker = None;
            }
            at += 1;
        }
    }
    blocks
}

/// Returns true if an indented paragraph behind these lines belongs to an item of a list.
fn in_list(before: &[&str]) -> bool {
    let last = before.iter().rev().find(|line| !line.trim().is_empty() && !line.starts_with("  "));
    last.is_some_and(|line| line.starts_with("- ") || line.starts_with(|c: char| c.is_ascii_digit()))
}

#[test]
fn blocks_and_their_markers_are_found() {
    let page = "# T\n\n    millstream opt a.o  # note\n\ntext\n\n<!-- not run: why -->\n```sh\nip link\n```\n\n\
        ```rust\nlet x;\n```\n";
    let blocks = code_blocks(page);
    let shells: Vec<(usize, bool, Option<&str>)> =
        blocks.iter().map(|b| (b.line, b.is_shell(), b.reason())).collect();
    assert_eq!(shells, [(3, true, None), (9, true, Some("why")), (13, false, None)]);
}

#[test]
fn command_lines_are_cut_where_the_shell_cuts_them() {
    let page = "    millstream a 'x y' \\\n        b > out.json && ./a   # c\n    true | millstream d &\n";
    let lines = code_blocks(page)[0].command_lines();
    assert_eq!(lines, [vec!["millstream", "a", "x y", "b"], vec!["millstream", "d"]]);
}
