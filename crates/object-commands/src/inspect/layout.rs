//! Layered drawing of a directed graph (Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of
//! Hierarchical System Structures"): layers by longest path, crossings reduced by barycentres, long edges led
//! through points of their own between the nodes. Edges against the order go around on the left.

/// A node or a point of an edge.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Rect {
    /// Left side.
    pub x: f64,
    /// Upper side.
    pub y: f64,
    /// Width.
    pub w: f64,
    /// Height.
    pub h: f64,
}

impl Rect {
    fn middle(&self) -> f64 {
        self.x + self.w / 2.0
    }
}

/// Positions of nodes and edges.
#[derive(Clone, Debug, Default)]
pub(super) struct GraphLayout {
    /// The nodes.
    pub nodes: Vec<Rect>,
    /// For each edge, its points from source to target; straight or curved between them.
    pub edges: Vec<Vec<(f64, f64)>>,
    /// Size of the whole.
    pub size: (f64, f64),
}

const GAP_X: f64 = 30.0;
const GAP_Y: f64 = 46.0;
/// Space for an edge on its way through a layer.
const LANE: f64 = 14.0;
const SWEEPS: usize = 12;

/// Draws a graph. Nodes are given by size in an order in which most edges lead forwards; those that do not
/// are taken as back edges.
pub(super) fn layout(sizes: &[(f64, f64)], edges: &[(usize, usize)]) -> GraphLayout {
    let mut grid = LayeredGraph::new(sizes, edges);
    for sweep in 0..SWEEPS {
        grid.order(sweep % 2 == 0);
    }
    grid.place();
    grid.drawing(sizes.len(), edges)
}

struct LayeredGraph {
    /// Nodes, then points of long edges.
    rects: Vec<Rect>,
    layer_of: Vec<usize>,
    layers: Vec<Vec<usize>>,
    above: Vec<Vec<usize>>,
    below: Vec<Vec<usize>>,
    /// The points that each forward edge passes, between its ends.
    paths: Vec<Vec<usize>>,
    /// Number of back edges, which have lanes on the left.
    lanes: usize,
}

fn is_back(edge: (usize, usize)) -> bool {
    edge.1 <= edge.0
}

impl LayeredGraph {
    fn new(sizes: &[(f64, f64)], edges: &[(usize, usize)]) -> LayeredGraph {
        let mut layer_of = vec![0; sizes.len()];
        for node in 0..sizes.len() {
            for &(from, to) in edges.iter().filter(|e| e.0 == node && !is_back(**e)) {
                layer_of[to] = layer_of[to].max(layer_of[from] + 1);
            }
        }
        let count = layer_of.iter().max().map_or(0, |m| m + 1);
        let mut grid = LayeredGraph {
            rects: sizes.iter().map(|&(w, h)| Rect { w, h, ..Rect::default() }).collect(),
            layers: vec![Vec::new(); count],
            above: vec![Vec::new(); sizes.len()],
            below: vec![Vec::new(); sizes.len()],
            paths: Vec::new(),
            lanes: edges.iter().filter(|e| is_back(**e)).count(),
            layer_of,
        };
        for node in 0..sizes.len() {
            grid.layers[grid.layer_of[node]].push(node);
        }
        for &edge in edges {
            let path = if is_back(edge) { Vec::new() } else { grid.lead(edge) };
            grid.paths.push(path);
        }
        grid
    }

    /// Makes a point in each layer that an edge passes.
    fn lead(&mut self, (from, to): (usize, usize)) -> Vec<usize> {
        let mut path = Vec::new();
        let mut last = from;
        for layer in self.layer_of[from] + 1..self.layer_of[to] {
            let point = self.rects.len();
            self.rects.push(Rect { w: LANE, ..Rect::default() });
            self.layer_of.push(layer);
            self.above.push(Vec::new());
            self.below.push(Vec::new());
            self.layers[layer].push(point);
            self.join(last, point);
            path.push(point);
            last = point;
        }
        self.join(last, to);
        path
    }

    fn join(&mut self, upper: usize, lower: usize) {
        self.below[upper].push(lower);
        self.above[lower].push(upper);
    }

    /// Sorts each layer by the mean position of neighbours in the layer before it.
    fn order(&mut self, downwards: bool) {
        let count = self.layers.len();
        let mut position = vec![0.0; self.rects.len()];
        let order: Vec<usize> = if downwards { (0..count).collect() } else { (0..count).rev().collect() };
        for layer in order {
            let neighbours = if downwards { &self.above } else { &self.below };
            let mean = |&n: &usize| {
                let near = &neighbours[n];
                (!near.is_empty()).then(|| near.iter().map(|&m| position[m]).sum::<f64>() / near.len() as f64)
            };
            let mut keyed: Vec<(f64, usize)> = self.layers[layer]
                .iter()
                .enumerate()
                .map(|(i, n)| (mean(n).unwrap_or(i as f64), *n))
                .collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            self.layers[layer] = keyed.iter().map(|k| k.1).collect();
            for (i, &n) in self.layers[layer].iter().enumerate() {
                position[n] = i as f64;
            }
        }
    }

    /// Gives coordinates: layers from the top down, in each as near as may be to the neighbours above, then
    /// below.
    fn place(&mut self) {
        let mut y = GAP_Y / 2.0;
        for layer in &self.layers {
            let height = layer.iter().map(|&n| self.rects[n].h).fold(0.0, f64::max);
            let mut x = 0.0;
            for &n in layer {
                let rect = &mut self.rects[n];
                (rect.x, rect.y) = (x, y);
                // Points of edges span the layer, so that edges pass between nodes straight.
                if n >= self.paths_start() {
                    self.rects[n].h = height;
                }
                x += self.rects[n].w + GAP_X;
            }
            y += height + GAP_Y;
        }
        for sweep in 0..SWEEPS {
            self.align(sweep % 2 == 0);
        }
        let left = self.rects.iter().map(|r| r.x).fold(f64::INFINITY, f64::min);
        let margin = GAP_X + self.lanes as f64 * LANE;
        self.rects.iter_mut().for_each(|r| r.x += margin - left);
    }

    /// Index of the first point of an edge: nodes come before.
    fn paths_start(&self) -> usize {
        self.paths.iter().flatten().copied().min().unwrap_or(usize::MAX)
    }

    /// Moves each item of each layer towards the mean of its neighbours, keeping order and distance.
    fn align(&mut self, downwards: bool) {
        let count = self.layers.len();
        let order: Vec<usize> = if downwards { (0..count).collect() } else { (0..count).rev().collect() };
        for layer in order {
            let items = self.layers[layer].clone();
            let wanted: Vec<f64> = items.iter().map(|&n| self.wanted(n, downwards)).collect();
            let mut from_left = wanted.clone();
            for i in 1..items.len() {
                let least = from_left[i - 1] + self.rects[items[i - 1]].w + GAP_X;
                from_left[i] = from_left[i].max(least);
            }
            let mut from_right = wanted;
            for i in (0..items.len().saturating_sub(1)).rev() {
                let most = from_right[i + 1] - self.rects[items[i]].w - GAP_X;
                from_right[i] = from_right[i].min(most);
            }
            for (i, &n) in items.iter().enumerate() {
                self.rects[n].x = (from_left[i] + from_right[i]) / 2.0;
            }
        }
    }

    /// The left side at which an item would be below (or above) the middle of its neighbours.
    fn wanted(&self, item: usize, downwards: bool) -> f64 {
        let near = if downwards { &self.above[item] } else { &self.below[item] };
        if near.is_empty() {
            return self.rects[item].x;
        }
        let mean = near.iter().map(|&m| self.rects[m].middle()).sum::<f64>() / near.len() as f64;
        mean - self.rects[item].w / 2.0
    }

    fn drawing(&self, nodes: usize, edges: &[(usize, usize)]) -> GraphLayout {
        let mut lane = 0;
        let mut out = Vec::with_capacity(edges.len());
        for (i, &(from, to)) in edges.iter().enumerate() {
            if is_back((from, to)) {
                lane += 1;
                out.push(self.around(from, to, lane));
            } else {
                out.push(self.down(i, edges));
            }
        }
        let right = self.rects.iter().map(|r| r.x + r.w).fold(0.0, f64::max);
        let bottom = self.rects.iter().map(|r| r.y + r.h).fold(0.0, f64::max);
        GraphLayout {
            nodes: self.rects[..nodes].to_vec(),
            edges: out,
            size: (right + GAP_X, bottom + GAP_Y / 2.0),
        }
    }

    /// Position along a node's side at which an edge ends: edges share the side evenly.
    fn port(&self, node: usize, nth: usize, of: usize) -> f64 {
        let rect = &self.rects[node];
        rect.x + rect.w * (nth + 1) as f64 / (of + 1) as f64
    }

    fn down(&self, edge: usize, edges: &[(usize, usize)]) -> Vec<(f64, f64)> {
        let (from, to) = edges[edge];
        let start = (self.exit(edge, edges), self.rects[from].y + self.rects[from].h);
        let end = (self.entry(edge, edges), self.rects[to].y);
        let mut points = vec![start];
        for &p in &self.paths[edge] {
            let rect = self.rects[p];
            points.push((rect.middle(), rect.y));
            points.push((rect.middle(), rect.y + rect.h));
        }
        points.push(end);
        points
    }

    /// Edges leave a node in the order in which they go from left to right.
    fn exit(&self, edge: usize, edges: &[(usize, usize)]) -> f64 {
        let from = edges[edge].0;
        let goal = |i: usize| {
            let first = self.paths[i].first().copied().unwrap_or(edges[i].1);
            (self.rects[first].middle(), i)
        };
        let outgoing: Vec<usize> =
            (0..edges.len()).filter(|&i| edges[i].0 == from && !is_back(edges[i])).collect();
        let before = outgoing.iter().filter(|&&i| goal(i) < goal(edge)).count();
        self.port(from, before, outgoing.len())
    }

    /// Edges enter a node in the order in which they come from left to right.
    fn entry(&self, edge: usize, edges: &[(usize, usize)]) -> f64 {
        let to = edges[edge].1;
        let origin = |i: usize| {
            let last = self.paths[i].last().copied().unwrap_or(edges[i].0);
            (self.rects[last].middle(), i)
        };
        let incoming: Vec<usize> =
            (0..edges.len()).filter(|&i| edges[i].1 == to && !is_back(edges[i])).collect();
        let before = incoming.iter().filter(|&&i| origin(i) < origin(edge)).count();
        self.port(to, before, incoming.len())
    }

    /// From the left side of one node up a lane to the left side of another.
    fn around(&self, from: usize, to: usize, lane: usize) -> Vec<(f64, f64)> {
        let (from, to) = (self.rects[from], self.rects[to]);
        let x = GAP_X / 2.0 + (self.lanes - lane) as f64 * LANE;
        let (start, end) = (from.y + from.h - 8.0, to.y + 8.0);
        vec![(from.x, start), (x, start), (x, end), (to.x, end)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap(a: &Rect, b: &Rect) -> bool {
        a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h
    }

    fn check(count: usize, edges: &[(usize, usize)]) -> GraphLayout {
        let sizes: Vec<(f64, f64)> =
            (0..count).map(|i| (60.0 + 30.0 * (i % 3) as f64, 20.0 + 9.0 * (i % 4) as f64)).collect();
        let drawing = layout(&sizes, edges);
        for (i, a) in drawing.nodes.iter().enumerate() {
            assert!(drawing.nodes[i + 1..].iter().all(|b| !overlap(a, b)), "node {i} overlaps another");
            assert!(a.x >= 0.0 && a.x + a.w <= drawing.size.0 && a.y + a.h <= drawing.size.1);
        }
        for (&(from, to), points) in edges.iter().zip(&drawing.edges) {
            if from < to {
                assert!(drawing.nodes[from].y < drawing.nodes[to].y, "edges lead down");
                assert!(points.windows(2).all(|p| p[0].1 <= p[1].1));
            }
        }
        drawing
    }

    #[test]
    fn nodes_do_not_overlap_and_edges_lead_down() {
        check(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]);
        check(7, &[(0, 1), (0, 6), (1, 2), (1, 3), (2, 4), (3, 4), (4, 1), (4, 5), (5, 6)]);
        check(1, &[(0, 0)]);
    }

    #[test]
    fn a_long_edge_passes_beside_the_nodes_between() {
        let edges = [(0, 1), (1, 2), (0, 2)];
        let drawing = check(3, &edges);
        let middle = drawing.nodes[1];
        let inside = |p: &&(f64, f64)| p.0 > middle.x && p.0 < middle.x + middle.w;
        assert_eq!(drawing.edges[2][1..3].iter().filter(inside).count(), 0);
    }
}
