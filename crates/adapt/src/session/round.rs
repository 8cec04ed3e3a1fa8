//! One attempt: plans, code, judgement, installation.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_ir::Module;
use millstream_native::VariantOptions;
use millstream_specializer::profile::SiteProfile;
use millstream_specializer::transform::TransformReport;

use super::adapter::{ActiveForm, Adapter};
use super::lock;
use crate::judge::{Judgement, judge};
use crate::plans::{HotKeys, candidates};
use crate::settings::AdaptMode;
use crate::snapshot::TableSnapshot;
use crate::status::{AdaptStatus, TableAdvice};

/// Time of one attempt, after which no further form is made or compiled; the first one always is.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(3);

/// A form of the program before it is compiled.
struct PreparedForm {
    module: Module,
    advice: Vec<TableAdvice>,
    hot: HotKeys,
    /// Numbers of the tables that it assumes.
    tables: BTreeSet<usize>,
}

/// A form that passed the judge, and its time.
struct JudgedForm {
    form: PreparedForm,
    time: f64,
}

impl Adapter {
    /// Tries plans, and installs the best form if it pays.
    pub(super) fn attempt(&mut self, status: &Mutex<AdaptStatus>) {
        let start = Instant::now();
        let profiles = self.replicas.profile(&self.program, &self.samples);
        let forms = self.prepare_forms(&profiles, start, status);
        let mut best: Option<JudgedForm> = None;
        for (number, form) in forms.into_iter().enumerate() {
            if number > 0 && start.elapsed() > LONGEST_ATTEMPT {
                break;
            }
            let Some(Judgement { compared, differences, time }) = self.judge(&form, status) else { continue };
            let mut status = lock(status);
            status.compared += compared;
            status.differences += differences;
            let fastest = status.attempted.filter(|_| number > 0).map_or(time, |fastest| fastest.min(time));
            status.attempted = Some(fastest);
            if differences > 0 {
                status.failure = Some("specialised code gave other results: nothing is installed".to_owned());
                drop(status);
                return self.give_up();
            }
            if time <= self.settings.most_time && best.as_ref().is_none_or(|best| time < best.time) {
                best = Some(JudgedForm { form, time });
            }
        }
        let took = start.elapsed();
        lock(status).compilation.compile_ms += took.as_secs_f64() * 1e3;
        self.rest(took);
        match best {
            Some(best) => self.install(best, &profiles, status),
            None => self.wait_longer(Instant::now()),
        }
    }

    /// Carries out the plans; those that change nothing are left out.
    fn prepare_forms(
        &mut self,
        profiles: &[SiteProfile],
        start: Instant,
        status: &Mutex<AdaptStatus>,
    ) -> Vec<PreparedForm> {
        let excluded = self.excluded();
        let tables = TableSnapshot::read(&self.program, self.replicas.reference(), profiles, &excluded);
        let mut forms: Vec<PreparedForm> = Vec::new();
        for candidate in candidates(&self.program, &tables, profiles) {
            if !forms.is_empty() && start.elapsed() > LONGEST_ATTEMPT {
                break;
            }
            let (module, report) = match self.program.specialized(&candidate.plan, &tables) {
                Ok(made) => made,
                Err(error) => {
                    count_failure(status, &error);
                    continue;
                }
            };
            let used = candidate.tables.into_iter().chain(tables.take_used());
            let has_effect = !candidate.plan.is_empty() || has_effect(&report);
            let form = PreparedForm {
                module,
                advice: candidate.advice,
                hot: candidate.hot,
                tables: used.map(|map| map.as_u32() as usize).collect(),
            };
            if has_effect && !form.tables.is_empty() {
                forms.push(form);
            }
        }
        forms
    }

    /// Compiles a form for the replica and judges it; `None` if it cannot be compiled.
    fn judge(&mut self, form: &PreparedForm, status: &Mutex<AdaptStatus>) -> Option<Judgement> {
        let builder = self.replicas.candidate_builder()?;
        // The replica's own passes are quick ones.
        let passes = self.settings.llvm_passes.as_deref().unwrap_or(self.slot.builder().llvm_passes());
        let options = VariantOptions { llvm_passes: Some(passes.to_owned()), ..self.variant_options() };
        match builder.compile(form.module.clone(), &options) {
            Ok(code) => {
                lock(status).compilation.compiled += 1;
                Some(judge(&mut self.replicas, &code, &self.samples))
            }
            Err(error) => {
                count_failure(status, &error);
                None
            }
        }
    }

    fn install(&mut self, best: JudgedForm, profiles: &[SiteProfile], status: &Mutex<AdaptStatus>) {
        let JudgedForm { form: PreparedForm { module, mut advice, hot, tables }, time } = best;
        if self.settings.mode == AdaptMode::Install {
            let builder = self.slot.builder();
            let code = match builder.compile(module, &self.variant_options()) {
                Ok(code) => Arc::new(code),
                Err(error) => return count_failure(status, &error),
            };
            lock(status).compilation.compiled += 1;
            let assumed: Vec<(usize, u64)> =
                tables.iter().map(|map| (*map, self.replicas.version(*map))).collect();
            if let Err(error) = self.slot.install(code, &assumed) {
                self.install_base();
                // The table was written while the code was made: the next attempt sees that.
                tracing::debug!("not installed: {error}");
                return;
            }
            self.limit.record(Instant::now());
        }
        let share = Adapter::share(&hot, profiles);
        if advice.is_empty() {
            let named = tables.iter().filter_map(|map| self.table_name(*map));
            advice = named.map(|table| TableAdvice { table, treatment: "constants", entries: 1 }).collect();
        }
        let mut status = lock(status);
        (status.tables, status.judged) = (advice, Some(time));
        // Whoever sees the swap sees what it was for.
        status.swaps += u64::from(self.settings.mode == AdaptMode::Install);
        drop(status);
        self.start_watching(ActiveForm { hot, share, tables });
    }

    fn table_name(&self, number: usize) -> Option<String> {
        let mut tables = self.program.tables().iter();
        tables.find(|(map, _)| map.as_u32() as usize == number).map(|(_, table)| table.name.clone())
    }
}

/// Returns true if a transform has changed anything.
fn has_effect(report: &TransformReport) -> bool {
    let changes = [report.folded_loads, report.folded_lookups, report.needless, report.walks];
    !report.sites.is_empty() || changes.iter().any(|count| *count > 0)
}

fn count_failure(status: &Mutex<AdaptStatus>, error: &dyn std::fmt::Display) {
    let mut status = lock(status);
    status.compilation.compile_failures += 1;
    status.failure = Some(error.to_string());
}
