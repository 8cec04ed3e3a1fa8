//! Readability of pages: README.md, ARCHITECTURE.md, CONTRIBUTING.md, and all pages below `docs/`.
//!
//! Prose is the text of paragraphs, list items and quotes. Headings, code blocks, tables and HTML do not
//! count. An item of a list is a paragraph. A link counts as its text, and code in a line as one word. A
//! sentence ends with `.`, `!` or `?` in front of a capital letter, code, an opening bracket or quotation
//! mark, and at the end of a paragraph. Colons and semicolons end none: they are how long sentences are made.

use std::collections::BTreeMap;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::figure::{FigureKind, FigurePlace, FigureValue, MeasuredFigure};
use crate::files::MarkdownPage;
use crate::repository::SourceRepository;

const TOP_PAGES: [&str; 3] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];

/// Stand-in for code in a line.
const CODE: &str = "`code`";

/// A paragraph, or an item of a list.
#[derive(Debug)]
struct ProseBlock {
    line: usize,
    text: String,
}

/// Prose of a page.
struct PageProse {
    blocks: Vec<ProseBlock>,
    headings: usize,
}

/// Measured readability of a page.
#[derive(PartialEq, Debug)]
struct PageMeasure {
    sentence_mean: f64,
    sentence_p90: usize,
    longest_paragraph: usize,
    words_per_heading: usize,
}

pub(crate) fn measure(repository: &SourceRepository) -> Vec<MeasuredFigure> {
    let names =
        ["page_sentence_mean", "page_sentence_p90", "page_longest_paragraph", "page_words_per_heading"];
    let mut values: [BTreeMap<String, f64>; 4] = Default::default();
    let (mut sentences, mut paragraphs, mut pages) = (Vec::new(), Vec::new(), Vec::new());
    for page in repository.pages.iter().filter(|page| is_measured(&page.path)) {
        let prose = prose(page);
        let measured = prose.measure();
        let numbers = [
            measured.sentence_mean,
            measured.sentence_p90 as f64,
            measured.longest_paragraph as f64,
            measured.words_per_heading as f64,
        ];
        for (values, number) in values.iter_mut().zip(numbers) {
            values.insert(page.path.clone(), number);
        }
        sentences.extend(prose.long_sentences(&page.path));
        paragraphs.extend(prose.long_paragraphs(&page.path));
        let weight = measured.words_per_heading as f64;
        if weight > goal(names[3]) {
            let text = format!("{weight} words per heading, {} headings", prose.headings);
            pages.push(FigurePlace { path: page.path.clone(), line: 0, weight, text });
        }
    }
    let findings = [sentences.clone(), sentences, paragraphs, pages];
    let figures = names.into_iter().zip(values).zip(findings);
    figures
        .map(|((name, values), findings)| MeasuredFigure::new(name, FigureValue::PerPage(values), findings))
        .collect()
}

fn goal(name: &str) -> f64 {
    FigureKind::find(name).and_then(|kind| kind.goal).unwrap_or(f64::INFINITY)
}

fn is_measured(path: &str) -> bool {
    TOP_PAGES.contains(&path) || path.starts_with("docs/")
}

fn prose(page: &MarkdownPage) -> PageProse {
    let mut prose = PageProse { blocks: Vec::new(), headings: 0 };
    let mut block: Option<ProseBlock> = None;
    // Number of headings, code blocks, tables and the like around the event.
    let mut unread = 0;
    let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_STRIKETHROUGH;
    for (event, range) in Parser::new_ext(&page.text, options).into_offset_iter() {
        let text = match event {
            Event::Start(tag) if is_unread(&tag) => {
                prose.headings += usize::from(matches!(tag, Tag::Heading { .. }));
                unread += 1;
                prose.end(&mut block);
                continue;
            }
            Event::End(TagEnd::Heading(_) | TagEnd::CodeBlock | TagEnd::Table | TagEnd::HtmlBlock) => {
                unread -= 1;
                continue;
            }
            Event::Start(Tag::Paragraph | Tag::Item | Tag::List(_) | Tag::BlockQuote(_))
            | Event::End(TagEnd::Paragraph | TagEnd::Item | TagEnd::List(_) | TagEnd::BlockQuote(_)) => {
                prose.end(&mut block);
                continue;
            }
            Event::Text(text) => text.to_string(),
            Event::Code(_) | Event::InlineMath(_) | Event::DisplayMath(_) => CODE.to_owned(),
            Event::SoftBreak | Event::HardBreak => " ".to_owned(),
            _ => continue,
        };
        if unread == 0 {
            let line = || 1 + page.text[..range.start].matches('\n').count();
            let block = block.get_or_insert_with(|| ProseBlock { line: line(), text: String::new() });
            block.text.push_str(&text);
        }
    }
    prose
}

fn is_unread(tag: &Tag<'_>) -> bool {
    matches!(tag, Tag::Heading { .. } | Tag::CodeBlock(_) | Tag::Table(_) | Tag::HtmlBlock)
}

impl PageProse {
    fn end(&mut self, block: &mut Option<ProseBlock>) {
        self.blocks.extend(block.take().filter(|block| words(&block.text) > 0));
    }

    fn measure(&self) -> PageMeasure {
        let mut sentences: Vec<usize> = self
            .blocks
            .iter()
            .flat_map(|block| sentences(&block.text))
            .map(words)
            .filter(|words| *words > 0)
            .collect();
        sentences.sort_unstable();
        let paragraphs = || self.blocks.iter().map(|block| words(&block.text));
        let total: usize = paragraphs().sum();
        PageMeasure {
            sentence_mean: total as f64 / sentences.len().max(1) as f64,
            sentence_p90: sentences.get(sentences.len() * 9 / 10).copied().unwrap_or(0),
            longest_paragraph: paragraphs().max().unwrap_or(0),
            words_per_heading: total.div_ceil(self.headings.max(1)),
        }
    }

    /// Finds sentences above the goal of the 90th percentile. The line is that of the paragraph.
    fn long_sentences(&self, path: &str) -> Vec<FigurePlace> {
        let all =
            self.blocks.iter().flat_map(|block| sentences(&block.text).into_iter().map(|s| (block.line, s)));
        let found = all.map(|(line, sentence)| (line, words(sentence), sentence));
        found
            .filter(|(_, words, _)| *words as f64 > goal("page_sentence_p90"))
            .map(|(line, words, sentence)| finding(path, line, words, "a sentence", sentence))
            .collect()
    }

    fn long_paragraphs(&self, path: &str) -> Vec<FigurePlace> {
        let found = self.blocks.iter().map(|block| (block, words(&block.text)));
        found
            .filter(|(_, words)| *words as f64 > goal("page_longest_paragraph"))
            .map(|(block, words)| finding(path, block.line, words, "a paragraph", &block.text))
            .collect()
    }
}

fn finding(path: &str, line: usize, words: usize, what: &str, text: &str) -> FigurePlace {
    let start: Vec<&str> = text.split_whitespace().take(6).collect();
    let text = format!("{what} of {words} words: \"{} ...\"", start.join(" "));
    FigurePlace { path: path.to_owned(), line, weight: words as f64, text }
}

/// Counts words: runs that begin with a letter or digit, with the marks that stand inside words.
fn words(text: &str) -> usize {
    let (mut count, mut is_inside) = (0, false);
    for c in text.chars() {
        let is_letter = c.is_alphanumeric();
        count += usize::from(is_letter && !is_inside);
        is_inside = is_letter || is_inside && "_'’./:-".contains(c);
    }
    count
}

/// Splits a paragraph into sentences.
fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut start, mut at) = (0, 0);
    while let Some(space) = text[at..].find(char::is_whitespace).map(|offset| at + offset) {
        let next = text[space..].trim_start();
        at = text.len() - next.len();
        // Brackets and quotation marks may close behind the mark.
        let end = text[start.min(space)..space].trim_end_matches([')', '"', '”', '\'', ']']);
        let is_start = next.starts_with(|c: char| c.is_uppercase() || "`([*\"“".contains(c));
        if end.ends_with(['.', '!', '?']) && is_start {
            found.push(&text[start..space]);
            start = at;
        }
    }
    found.push(&text[start..]);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::sample;

    fn page(text: &str) -> PageProse {
        prose(&MarkdownPage { path: "a.md".into(), text: text.into() })
    }

    #[test]
    fn words_are_counted() {
        assert_eq!(words("A well-known page's 16 `code` words: and/or, x86-64."), 8);
        assert_eq!(words("-- | ..."), 0);
    }

    #[test]
    fn sentences_end_at_marks() {
        let split = |text: &'static str| sentences(text);
        assert_eq!(split("One two. Three? `code` four"), ["One two.", "Three?", "`code` four"]);
        assert_eq!(
            split("See e.g. this (it is so.) Then: That; end."),
            ["See e.g. this (it is so.)", "Then: That; end."]
        );
        assert_eq!(split("Version 1.2 of 3.4"), ["Version 1.2 of 3.4"]);
    }

    #[test]
    fn only_prose_counts() {
        let page = page(
            "# A heading\n\nOne two\nthree.\n\n```\nnot prose\n```\n\n    not prose\n\n\
             | a | b |\n|---|---|\n| c | d |\n\n\
             - four [five](https://example.org/six)\n  - `seven and eight`\n\n> nine\n\n<p>not prose</p>\n",
        );
        let blocks: Vec<(usize, &str)> = page.blocks.iter().map(|b| (b.line, b.text.as_str())).collect();
        assert_eq!(blocks, [(3, "One two three."), (16, "four five"), (17, "`code`"), (19, "nine")]);
        assert_eq!(page.headings, 1);
    }

    #[test]
    fn a_page_is_measured() {
        let long = "word ".repeat(120);
        let page = page(&format!("# A\n\nOne two. Three four five six.\n\n# B\n\n{long}\n"));
        assert_eq!(
            page.measure(),
            PageMeasure {
                sentence_mean: 42.0,
                sentence_p90: 120,
                longest_paragraph: 120,
                words_per_heading: 63
            }
        );
        assert_eq!(
            page.long_paragraphs("a.md")[0].to_string(),
            "a.md:7: a paragraph of 120 words: \"word word word word word word ...\""
        );
        assert_eq!(page.long_sentences("a.md").len(), 1);
    }

    #[test]
    fn other_pages_are_not_measured() {
        let repository = sample(&[
            ("README.md", "One."),
            ("CHANGELOG.md", "Two."),
            ("docs/design/verifier-generations.md", ""),
        ]);
        let FigureValue::PerPage(values) = &measure(&repository)[0].value else {
            panic!("one value for all")
        };
        assert_eq!(values.keys().collect::<Vec<_>>(), ["README.md", "docs/design/verifier-generations.md"]);
    }
}
