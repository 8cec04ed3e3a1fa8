//! Control-flow graphs as pictures.

use std::fmt::Write as _;

use cranelift_entity::SecondaryMap;
use millstream_ir::{Block, Cfg, Function};

use super::cfg::{EdgeKind, edges, lines};
use super::layout::{GraphLayout, Rect, layout};

const CHAR: f64 = 6.1;
const LINE: f64 = 13.0;
const PAD: f64 = 6.0;
/// Longer lines are cut.
const MAX_CHARS: usize = 90;

/// Draws the graph of a function: taken edges solid green, fall-through edges dashed red, others grey.
pub(super) fn draw(func: &Function) -> String {
    let cfg = Cfg::new(func);
    let unreachable = func.layout.iter().copied().filter(|&b| !cfg.is_reachable(b));
    let blocks: Vec<Block> = cfg.rpo.iter().copied().chain(unreachable).collect();
    let mut index: SecondaryMap<Block, usize> = SecondaryMap::new();
    blocks.iter().enumerate().for_each(|(i, &b)| index[b] = i);
    let texts: Vec<Vec<String>> = blocks.iter().map(|&b| shortened(lines(func, b))).collect();
    let sizes: Vec<(f64, f64)> = texts.iter().map(|t| size(t)).collect();
    let mut ends = Vec::new();
    let mut kinds = Vec::new();
    for &block in &blocks {
        for (to, kind) in edges(func, block) {
            ends.push((index[block], index[to]));
            kinds.push(kind);
        }
    }
    let drawing = layout(&sizes, &ends);
    render(&func.name, &drawing, &texts, &kinds)
}

fn shortened(lines: Vec<String>) -> Vec<String> {
    let cut = |line: String| match line.char_indices().nth(MAX_CHARS) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    };
    lines.into_iter().map(cut).collect()
}

fn size(lines: &[String]) -> (f64, f64) {
    let longest = lines.iter().map(|l| l.chars().count()).max().unwrap_or(0);
    (longest as f64 * CHAR + 2.0 * PAD, lines.len() as f64 * LINE + 2.0 * PAD)
}

fn render(title: &str, drawing: &GraphLayout, texts: &[Vec<String>], kinds: &[EdgeKind]) -> String {
    let (w, h) = drawing.size;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" viewBox=\"0 0 {w:.0} {h:.0}\">\n\
         <title>{}</title>\n<style>\n\
         text {{ font: 10px monospace; fill: #1c2733; white-space: pre; }}\n\
         .name {{ font-weight: bold; }}\n\
         rect {{ fill: #f6f8fa; stroke: #57606a; }}\n\
         path {{ fill: none; stroke-width: 1.3; }}\n\
         .only {{ stroke: #57606a; }}\n.taken {{ stroke: #1a7f37; }}\n\
         .not {{ stroke: #cf222e; stroke-dasharray: 5 3; }}\n\
         </style>\n<defs>\n",
        escaped(title)
    );
    for (class, colour) in [("only", "#57606a"), ("taken", "#1a7f37"), ("not", "#cf222e")] {
        let _ = writeln!(
            out,
            "<marker id=\"{class}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
             orient=\"auto\"><polygon points=\"0,0 8,4 0,8\" fill=\"{colour}\"/></marker>"
        );
    }
    out.push_str("</defs>\n<rect width=\"100%\" height=\"100%\" style=\"fill:#fff;stroke:none\"/>\n");
    for (points, kind) in drawing.edges.iter().zip(kinds) {
        let class = match kind {
            EdgeKind::Only => "only",
            EdgeKind::Taken => "taken",
            EdgeKind::FallThrough => "not",
        };
        let _ =
            writeln!(out, "<path class=\"{class}\" marker-end=\"url(#{class})\" d=\"{}\"/>", path(points));
    }
    for (rect, lines) in drawing.nodes.iter().zip(texts) {
        node(&mut out, rect, lines);
    }
    out.push_str("</svg>\n");
    out
}

fn node(out: &mut String, rect: &Rect, lines: &[String]) {
    let Rect { x, y, w, h } = rect;
    let _ = writeln!(out, "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"3\"/>");
    for (i, line) in lines.iter().enumerate() {
        let class = if i == 0 { " class=\"name\"" } else { "" };
        let baseline = y + PAD + LINE * i as f64 + LINE * 0.75;
        let _ =
            writeln!(out, "<text{class} x=\"{:.1}\" y=\"{baseline:.1}\">{}</text>", x + PAD, escaped(line));
    }
}

/// Vertical and horizontal lines stay straight; others are curves that leave and arrive vertically.
fn path(points: &[(f64, f64)]) -> String {
    let mut d = String::new();
    for (i, &(x, y)) in points.iter().enumerate() {
        let previous = i.checked_sub(1).map(|p| points[p]);
        let _ = match previous {
            None => write!(d, "M{x:.1} {y:.1}"),
            Some((px, py)) if (px - x).abs() < 0.5 || (py - y).abs() < 0.5 => write!(d, " L{x:.1} {y:.1}"),
            Some((px, py)) => {
                let mid = (py + y) / 2.0;
                write!(d, " C{px:.1} {mid:.1} {x:.1} {mid:.1} {x:.1} {y:.1}")
            }
        };
    }
    d
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
