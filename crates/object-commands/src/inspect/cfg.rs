//! Control-flow graphs as text and for Graphviz.

use std::fmt::Write as _;

use millstream_ir::text::print_inst;
use millstream_ir::{Block, Cfg, DomTree, Function, Loops};

/// Role of an edge for the block that it leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EdgeKind {
    /// The block's only edge.
    Only,
    /// Taken if the condition holds.
    Taken,
    /// Taken if the condition does not hold.
    FallThrough,
}

/// The edges out of a block.
pub(super) fn edges(func: &Function, block: Block) -> Vec<(Block, EdgeKind)> {
    let targets = func.targets(block);
    let kind = |i: usize| match (targets.len(), i) {
        (1, _) => EdgeKind::Only,
        (_, 0) => EdgeKind::Taken,
        _ => EdgeKind::FallThrough,
    };
    targets.iter().enumerate().map(|(i, t)| (t.block, kind(i))).collect()
}

/// Name and parameters of a block, then its instructions.
pub(super) fn lines(func: &Function, block: Block) -> Vec<String> {
    let data = &func.blocks[block];
    let params: Vec<String> = data.params.iter().map(ToString::to_string).collect();
    let head = match params.is_empty() {
        true => block.to_string(),
        false => format!("{block}({})", params.join(", ")),
    };
    std::iter::once(head).chain(data.insts.iter().map(|&i| print_inst(func, i))).collect()
}

/// Blocks in layout order with neighbours, dominators and loops.
pub(super) fn text(func: &Function) -> String {
    let cfg = Cfg::new(func);
    let dom = DomTree::new(func, &cfg);
    let loops = Loops::new(&cfg, &dom);
    let mut out = String::new();
    for &block in &func.layout {
        let names = |blocks: &[Block]| blocks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let to: Vec<String> = edges(func, block)
            .into_iter()
            .map(|(to, kind)| match kind {
                EdgeKind::Only => to.to_string(),
                EdgeKind::Taken => format!("{to} if taken"),
                EdgeKind::FallThrough => format!("{to} if not"),
            })
            .collect();
        let _ = write!(out, "{block}: {} instructions", func.blocks[block].insts.len());
        if !cfg.is_reachable(block) {
            out.push_str(", unreachable");
        }
        if !cfg.preds[block].is_empty() {
            let _ = write!(out, ", from {}", names(&cfg.preds[block]));
        }
        if !to.is_empty() {
            let _ = write!(out, ", to {}", to.join(", "));
        }
        if let Some(idom) = dom.idom(block) {
            let _ = write!(out, ", dominated by {idom}");
        }
        if loops.depth[block] > 0 {
            let head = if loops.is_header[block] { ", loop header" } else { "" };
            let _ = write!(out, ", loop depth {}{head}", loops.depth[block]);
        }
        out.push('\n');
    }
    out
}

/// The graph in Graphviz's language.
pub(super) fn dot(func: &Function) -> String {
    let mut out = format!("digraph \"{}\" {{\n", escaped(&func.name));
    out.push_str("  node [shape=box, fontname=monospace, fontsize=10];\n");
    for &block in &func.layout {
        let label: String = lines(func, block).iter().map(|l| format!("{}\\l", escaped(l))).collect();
        let _ = writeln!(out, "  {block} [label=\"{label}\"];");
        for (to, kind) in edges(func, block) {
            let style = match kind {
                EdgeKind::Only => "",
                EdgeKind::Taken => " [color=darkgreen, label=taken]",
                EdgeKind::FallThrough => " [color=firebrick, style=dashed]",
            };
            let _ = writeln!(out, "  {block} -> {to}{style};");
        }
    }
    out.push_str("}\n");
    out
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
