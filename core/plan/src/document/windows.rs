//! Windows: sizes, offsets, time zones.

use chrono_tz::Tz;
use streamforge_core::job_graph::WindowSpec;
use streamforge_core::units::{HumanDuration, HumanOffset};
use streamforge_crds::v1alpha1::Window;

use super::nodes::Context;
use crate::problem::did_you_mean;

const DAY_US: i64 = 86_400_000_000;

/// Slices a hopping window may be cut into. Each is a table of its own, and merged for each window.
const SLICES_MAX: i64 = 10_000;

pub(super) fn resolve(
    window: &Window,
    path: &str,
    context: &mut Context<'_>,
) -> Option<WindowSpec> {
    if let Some(tumbling) = &window.tumbling {
        let path = format!("{path}.tumbling");
        let size = positive(tumbling.size, &format!("{path}.size"), context);
        let zone = time_zone(&tumbling.time_zone, &path, context);
        let size_us = size?;
        let time_zone = zone?;
        let offset = offset(tumbling.offset, size_us, "size", &path, context);
        let whole = whole_days(size_us, &time_zone, &format!("{path}.size"), context);
        whole?;
        return Some(WindowSpec::Tumbling {
            size_us,
            offset_us: offset?,
            time_zone,
        });
    }
    if let Some(hopping) = &window.hopping {
        let path = format!("{path}.hopping");
        let size = positive(hopping.size, &format!("{path}.size"), context);
        let slide = positive(hopping.slide, &format!("{path}.slide"), context);
        let zone = time_zone(&hopping.time_zone, &path, context);
        let (size_us, slide_us, time_zone) = (size?, slide?, zone?);
        check_slide(
            hopping.size,
            hopping.slide,
            &format!("{path}.slide"),
            context,
        )?;
        let offset = offset(hopping.offset, slide_us, "slide", &path, context);
        let size_is_whole = whole_days(size_us, &time_zone, &format!("{path}.size"), context);
        let slide_is_whole = whole_days(slide_us, &time_zone, &format!("{path}.slide"), context);
        size_is_whole.and(slide_is_whole)?;
        return Some(WindowSpec::Hopping {
            size_us,
            slide_us,
            offset_us: offset?,
            time_zone,
        });
    }
    let session = window.session.as_ref()?;
    let gap_us = positive(session.gap, &format!("{path}.session.gap"), context)?;
    Some(WindowSpec::Session { gap_us })
}

fn positive(duration: HumanDuration, path: &str, context: &mut Context<'_>) -> Option<i64> {
    if duration.is_zero() {
        context.add(path, "the time must be longer than zero", None);
        return None;
    }
    Some(duration.micros())
}

fn check_slide(
    size: HumanDuration,
    slide: HumanDuration,
    path: &str,
    context: &mut Context<'_>,
) -> Option<()> {
    if slide > size {
        let message =
            format!("slide {slide} is longer than size {size}: rows between would be lost");
        let hint = "slide must be at most size; for windows side by side write `tumbling`";
        context.add(path, message, Some(hint.to_owned()));
        return None;
    }
    let slice = greatest_common_divisor(size.micros(), slide.micros());
    let slices_n = size.micros() / slice.max(1);
    if slices_n > SLICES_MAX {
        let message =
            format!("size {size} and slide {slide} cut time into {slices_n} slices per window");
        let hint = format!("at most {SLICES_MAX} are allowed; make size a multiple of slide");
        context.add(path, message, Some(hint));
        return None;
    }
    Some(())
}

fn greatest_common_divisor(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The offset within `0..period`; a negative one names the same grid (KF-E2).
fn offset(
    offset: HumanOffset,
    period_us: i64,
    period: &str,
    path: &str,
    context: &mut Context<'_>,
) -> Option<i64> {
    if offset.micros().abs() >= period_us {
        let message = format!("offset {offset} is not shorter than {period}");
        context.add(&format!("{path}.offset"), message, None);
        return None;
    }
    Some(offset.micros().rem_euclid(period_us))
}

fn time_zone(name: &str, path: &str, context: &mut Context<'_>) -> Option<String> {
    match name.parse::<Tz>() {
        Ok(Tz::UTC | Tz::Etc__UTC | Tz::Zulu | Tz::Etc__Zulu) => Some("UTC".to_owned()),
        Ok(zone) => Some(zone.name().to_owned()),
        Err(_) => {
            let zones = chrono_tz::TZ_VARIANTS.iter().map(|zone| zone.name());
            let hint = did_you_mean(name, zones)
                .unwrap_or_else(|| "write an IANA name like `Europe/Paris`".to_owned());
            let message = format!("`{}` is not a time zone", crate::yaml::cut(name));
            context.add(&format!("{path}.timeZone"), message, Some(hint));
            None
        }
    }
}

fn whole_days(
    length_us: i64,
    time_zone: &str,
    path: &str,
    context: &mut Context<'_>,
) -> Option<()> {
    if time_zone == "UTC" || length_us % DAY_US == 0 {
        return Some(());
    }
    let message = format!("in the time zone {time_zone} a window must be whole days");
    let hint = "write a length like `1d`, or leave `timeZone` out";
    context.add(path, message, Some(hint.to_owned()));
    None
}
