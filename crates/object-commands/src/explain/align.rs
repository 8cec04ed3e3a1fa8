//! Alignment of two sequences: the pairs, in order in both, whose scores add up to the most.
//!
//! Dynamic programming, by halves (Hirschberg, CACM 1975) where the table would be large, so that memory
//! stays linear.

/// Cells of a table that is held as a whole.
const WHOLE: usize = 1 << 22;

/// Cells beyond which both sequences are cut in the middle without looking.
const MOST: usize = 1 << 29;

/// Pairs of positions in the two sequences, of `n` and `m` elements. `score` is positive for elements that
/// may be paired.
pub(super) fn align(n: usize, m: usize, score: &dyn Fn(usize, usize) -> u32) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    part((0, n), (0, m), score, &mut pairs);
    pairs
}

type IndexRange = (usize, usize);

fn part(a: IndexRange, b: IndexRange, score: &dyn Fn(usize, usize) -> u32, pairs: &mut Vec<(usize, usize)>) {
    let (n, m) = (a.1 - a.0, b.1 - b.0);
    if n == 0 || m == 0 {
        return;
    }
    if n.saturating_mul(m) <= WHOLE || n == 1 {
        return whole(a, b, score, pairs);
    }
    let middle = a.0 + n / 2;
    let cut = if n.saturating_mul(m) > MOST { b.0 + m / 2 } else { split(a, middle, b, score) };
    part((a.0, middle), (b.0, cut), score, pairs);
    part((middle, a.1), (cut, b.1), score, pairs);
}

/// Place to cut the second sequence if the first is cut at `middle`.
fn split(a: IndexRange, middle: usize, b: IndexRange, score: &dyn Fn(usize, usize) -> u32) -> usize {
    let m = b.1 - b.0;
    let forward = last_row(middle - a.0, m, &|i, j| score(a.0 + i, b.0 + j));
    let backward = last_row(a.1 - middle, m, &|i, j| score(a.1 - 1 - i, b.1 - 1 - j));
    let total = |j: &usize| forward[*j] + backward[m - *j];
    b.0 + (0..=m).max_by_key(total).unwrap_or(0)
}

/// The best total scores of the whole first sequence with each prefix of the second.
fn last_row(n: usize, m: usize, score: &dyn Fn(usize, usize) -> u32) -> Vec<u32> {
    let mut row = vec![0; m + 1];
    for i in 0..n {
        let mut diagonal = 0;
        for j in 0..m {
            let above = row[j + 1];
            row[j + 1] = best(above, row[j], diagonal, score(i, j));
            diagonal = above;
        }
    }
    row
}

fn best(above: u32, left: u32, diagonal: u32, score: u32) -> u32 {
    let matched = if score > 0 { diagonal + score } else { 0 };
    above.max(left).max(matched)
}

fn whole(a: IndexRange, b: IndexRange, score: &dyn Fn(usize, usize) -> u32, pairs: &mut Vec<(usize, usize)>) {
    let (n, m) = (a.1 - a.0, b.1 - b.0);
    let width = m + 1;
    let mut totals = vec![0u32; (n + 1) * width];
    for i in 0..n {
        for j in 0..m {
            let (above, left) = (totals[i * width + j + 1], totals[(i + 1) * width + j]);
            let diagonal = totals[i * width + j];
            totals[(i + 1) * width + j + 1] = best(above, left, diagonal, score(a.0 + i, b.0 + j));
        }
    }
    let (mut i, mut j, start) = (n, m, pairs.len());
    while i > 0 && j > 0 {
        let here = totals[i * width + j];
        let points = score(a.0 + i - 1, b.0 + j - 1);
        if points > 0 && here == totals[(i - 1) * width + j - 1] + points {
            (i, j) = (i - 1, j - 1);
            pairs.push((a.0 + i, b.0 + j));
        } else if here == totals[(i - 1) * width + j] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    pairs[start..].reverse();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(a: &str, b: &str) -> Vec<(usize, usize)> {
        let (a, b) = (a.as_bytes(), b.as_bytes());
        align(a.len(), b.len(), &|i, j| u32::from(a[i] == b[j]))
    }

    #[test]
    fn what_both_have_in_order_stands_side_by_side() {
        assert_eq!(of("abcd", "bd"), [(1, 0), (3, 1)]);
        assert_eq!(of("", "ab"), []);
        assert_eq!(of("xay", "bab"), [(1, 1)]);
    }

    #[test]
    fn of_two_ways_the_better_is_taken() {
        let score = |i: usize, j: usize| [[1, 0], [3, 1]][i][j];
        assert_eq!(align(2, 2, &score), [(1, 0)]);
    }

    #[test]
    fn by_halves_the_total_is_the_same() {
        // Long enough for several cuts.
        let element = |seed: usize, i: usize| (i * 7919 + seed * (i / 50)) % 11;
        let (n, m) = (3000, 2800);
        let score = |i: usize, j: usize| u32::from(element(1, i) == element(3, j));
        let pairs = align(n, m, &score);
        assert!(pairs.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1));
        assert_eq!(pairs.len() as u32, *last_row(n, m, &score).last().unwrap());
    }
}
