//! Picture of predicted and measured throughput over batch and sub-batch.

use std::fmt::Write as _;

use super::{MeasuredPoint, ModelReport};

/// Size of the picture and of its frame, in pixels.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const MARGIN: f64 = 60.0;
/// Colours of the sub-batches, distinguishable without colour vision (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"];

/// The picture, as SVG: lines are predictions, circles measurements.
pub(super) fn picture(report: &ModelReport) -> String {
    let measured = report.measured.iter().map(|point| point.mpps);
    let most = report.grid.iter().map(|p| p.mpps).chain(measured).fold(1e-3, f64::max);
    let last = report.grid.iter().map(|p| p.batch).max().unwrap_or(1).max(2);
    let x = |batch: u32| MARGIN + (WIDTH - 2.0 * MARGIN) * f64::from(batch).log2() / f64::from(last).log2();
    let y = |mpps: f64| HEIGHT - MARGIN - (HEIGHT - 2.0 * MARGIN) * mpps / most;
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>"
    );
    let (left, right, bottom, top) = (MARGIN, WIDTH - MARGIN, HEIGHT - MARGIN, MARGIN);
    let _ = writeln!(
        out,
        "<path d=\"M{left} {top}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>\
         <text x=\"{left}\" y=\"{}\">million packets per second: lines predicted, circles measured</text>\
         <text x=\"{}\" y=\"{}\">batch B</text>",
        top - 20.0,
        right - 50.0,
        bottom + 40.0
    );
    for step in 0..=4 {
        let mpps = most * f64::from(step) / 4.0;
        let _ = writeln!(out, "<text x=\"{}\" y=\"{}\">{mpps:.1}</text>", left - 40.0, y(mpps) + 4.0);
    }
    let mut batches: Vec<u32> = report.grid.iter().map(|p| p.batch).collect();
    batches.dedup();
    for batch in batches {
        let _ = writeln!(out, "<text x=\"{}\" y=\"{}\">{batch}</text>", x(batch) - 6.0, bottom + 18.0);
    }
    let mut sub_batches: Vec<u32> = report.grid.iter().map(|p| p.sub_batch).collect();
    sub_batches.sort_unstable();
    sub_batches.dedup();
    for (at, b) in sub_batches.into_iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let line = report.grid.iter().filter(|p| p.sub_batch == b);
        let places: Vec<String> = line.map(|p| format!("{:.1},{:.1}", x(p.batch), y(p.mpps))).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>\
             <text x=\"{}\" y=\"{}\" fill=\"{colour}\">b = {b}</text>",
            places.join(" "),
            right + 6.0,
            top + 16.0 * at as f64
        );
        for MeasuredPoint { batch, mpps, .. } in report.measured.iter().filter(|p| p.sub_batch == b) {
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>",
                x(*batch),
                y(*mpps)
            );
        }
    }
    out.push_str("</svg>\n");
    out
}
